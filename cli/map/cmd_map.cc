// `qkv map`: draws attention, from a trained model and a text, from a tensor of weights, or from q and k (--qk: the explorer).
#include <fmt/format.h>

#include <optional>

#include "core/escape.h"
#include "map/explore.h"
#include "map/look.h"
#include "map/maps.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/trainer.h"
#include "support/command.h"
#include "support/files.h"
#include "support/integer_option.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr const char* kDefaultText = "abababab";

struct MapCommandOptions {
  std::string file, weights, qk, tokens, text, title, theme;  // theme empty: dark
  std::vector<std::string> out;
  std::optional<Index> sequence;
  MapStyle style;
  MapPixels pixels;
  MapLookOptions look;
  ComputeOptions compute;
};

/// What is drawn, and for a model what was seen, in numbers.
struct Drawn {
  view::AttentionMap map;
  std::string text;
  std::vector<LayerLook> looks;
};

Drawn map_of_model(const std::string& file, const StateDict& state, const MapCommandOptions& options,
                   const view::MapOptions& style) {
  const lm::Checkpoint checkpoint = about_file("FILE", file, [&] { return lm::checkpoint_from_state(state); });
  const std::string text = options.text.empty() ? kDefaultText : options.text;
  const std::vector<Index> ids = about("--text", [&] { return checkpoint.tokenizer.encode(text); });
  const Index longest = checkpoint.model.config().context;
  if (static_cast<Index>(ids.size()) > longest) {
    throw UsageError(
        fmt::format("--text must be at most as long as the model's context, {}: got {} characters", longest, ids.size()));
  }
  Context context(options.compute.context());
  const lm::AttentionReport report = lm::attention_report(checkpoint.model, ids, context);
  Drawn drawn{
      view::make_map(View<const float, 4>(report.weights), view::characters(text), "attention of \"" + text + "\""), text, {}};
  if (options.look.any()) {
    drawn.looks = look_at(checkpoint.model, ids, style.layers, style.heads, options.look, context);
  }
  return drawn;
}

/// [Tq, Tk], [H, Tq, Tk], or one sequence of [B, H, Tq, Tk].
view::AttentionMap map_of_weights(const std::string& file, const AnyTensor& tensor, const MapCommandOptions& options) {
  const auto refuse = [&](const std::string& why) { return UsageError(escaped(file) + ": " + why); };
  Tensor<float> weights = about(escaped(file), [&] { return to_f32(tensor); });
  std::vector<Index> sizes = weights.sizes();
  if (sizes.size() < 2 || sizes.size() > 4) {
    throw refuse("weights must be [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]: got " + weights.shape());
  }
  while (sizes.size() < 4) sizes.insert(sizes.begin(), 1);
  weights.reshape(sizes);
  const Index sequence = options.sequence.value_or(0);
  if (sequence < 0 || sequence >= sizes[0]) {
    throw UsageError(fmt::format("--sequence must be one of the {} in {}: got {}", sizes[0], escaped(file), sequence));
  }
  const View<const float, 4> chosen = std::as_const(weights).view<4>().sliced(0, sequence, sequence + 1);  // [1, H, Tq, Tk]
  const std::vector<std::string> labels = view::characters(options.text);
  view::AttentionMap map = about(escaped(file), [&] { return view::make_map(chosen, {}, "attention weights"); });
  const auto count = static_cast<Index>(labels.size());
  if (count == 0) return map;
  if (count != map.kv_len() && count != map.q_len()) {
    throw UsageError(
        fmt::format("--text must have one character per key ({}) or query ({}): got {}", map.kv_len(), map.q_len(), count));
  }
  if (count == map.kv_len()) map.key_tokens = labels;
  if (count == map.q_len()) map.query_tokens = labels;
  return map;
}

Drawn make_map(const MapCommandOptions& options, const view::MapOptions& style) {
  if (options.file.empty() == options.weights.empty())
    throw UsageError("give one file: a model that qkv train wrote, or --weights w.npy");
  const std::string& file = options.file.empty() ? options.weights : options.file;
  const std::string_view option = options.file.empty() ? "--weights" : "FILE";
  const auto of_weights = [&](const AnyTensor& weights) -> Drawn {
    if (options.look.any()) {
      throw UsageError(escaped(file) +
                       ": --stats, --top-k and --json need a model that qkv train wrote; for tensors use qkv attend --stats");
    }
    return {map_of_weights(file, weights, options), {}, {}};
  };
  if (ending(file) != ".safetensors") return of_weights(load_npy(option, file));
  const StateDict state = load_safetensors(option, file);
  if (const AnyTensor* weights = state.find("weights")) return of_weights(*weights);
  if (options.sequence) throw UsageError("--sequence is for weights: a model reads one text, --text");
  return map_of_model(file, state, options, style);
}

/// --qk: the explorer's page. Options of pictures have no meaning there, and are refused.
int run_explorer(const MapCommandOptions& options) {
  const MapStyle& style = options.style;
  if (!options.file.empty() || !options.weights.empty()) throw UsageError("give one file: a model, --weights or --qk");
  if (!options.text.empty() || options.sequence || !options.theme.empty() || options.look.any() || !style.layers.empty() ||
      !style.heads.empty() || !style.range.empty() || !style.scale.empty())
    throw UsageError("--qk goes with --tokens, --title and --out: the page itself chooses heads, ranges and colours");
  if (options.out.size() != 1) throw UsageError("--qk needs one --out PAGE.html");
  Outputs outputs;
  outputs.expect("--out", options.out.front(), {".html"});
  Context context(options.compute.context());
  outputs.add(options.out.front(), explorer_page(options.qk, options.tokens, options.title, context));
  outputs.commit();
  print_line("wrote " + one_line(options.out.front()));
  return 0;
}

int run_map(const MapCommandOptions& options) {
  if (!options.qk.empty()) return run_explorer(options);
  if (!options.tokens.empty()) throw UsageError("--tokens goes with --qk; a model's tokens are the characters of --text");
  Outputs outputs;
  for (const std::string& path : options.out) expect_map(outputs, "--out", path);
  const view::PixelOptions pixels = map_pixels(options.pixels, options.out);
  const view::MapOptions style = map_style(options.style);
  if (!options.theme.empty() && options.theme != "dark" && options.theme != "light") {
    throw UsageError("--theme must be dark or light: got " + escaped(options.theme));
  }
  const bool on_terminal = options.out.empty() && !options.look.any();
  if (!on_terminal && !options.theme.empty())
    throw UsageError("--theme is for the picture on the terminal: there is none here");
  if (!on_terminal && options.out.empty() &&
      (!options.title.empty() || !options.style.range.empty() || !options.style.scale.empty()))
    throw UsageError(
        "--title, --range and --scale are for a picture: there is none with --stats, --top-k and --json without --out");
  Drawn drawn = make_map(options, style);
  if (!options.title.empty()) drawn.map.title = options.title;
  for (const std::string& path : options.out) add_map(outputs, path, drawn.map, style, pixels);
  outputs.commit();
  if (options.look.json) {
    print_json(looks_json(drawn.looks, drawn.text));
    return 0;
  }
  for (const std::string& path : options.out) print_line("wrote " + one_line(path));
  if (options.look.any()) print_looks(drawn.looks, drawn.map.key_tokens, options.look);
  if (!on_terminal) return 0;
  view::TerminalOptions shown = map_options(style);
  shown.theme = options.theme == "light" ? view::Theme::kLight : view::Theme::kDark;
  print(view::render_terminal(drawn.map, shown));
  return 0;
}

std::function<int()> declare_map(CLI::App& app) {
  auto options = std::make_shared<MapCommandOptions>();
  app.add_option("FILE", options->file, "A model that qkv train wrote, or weights (.npy)")->type_name("FILE");
  app.add_option("--weights", options->weights, "Weights [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk], .npy")->type_name("FILE");
  app.add_option("--qk", options->qk, "q, k and lse of heads, .safetensors: the explorer's page, see docs/explorer-file.md")
      ->type_name("FILE");
  app.add_option("--tokens", options->tokens, "With --qk: its tokens, a JSON list of strings")->type_name("FILE");
  app.add_option("--text", options->text, "The text to look at (default abababab); with weights: labels")->type_name("TEXT");
  add_integer(app, "--sequence", options->sequence, "Which sequence of [B, H, Tq, Tk] (default 0)");
  app.add_option("--out", options->out, "A .png, .svg, .pdf or .html; may be repeated (default: the terminal)")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--title", options->title, "Title above the picture")->type_name("TEXT");
  app.add_option("--theme", options->theme, "Colours of the terminal: dark or light (default dark)")->type_name("NAME");
  add_map_style(app, options->style);
  add_map_pixels(app, options->pixels);
  add_map_look_options(app, options->look);
  add_compute_options(app, options->compute);
  return [options] { return run_map(*options); };
}

const bool map_added = add_command({"map", "Draw attention: terminal, PNG, SVG, PDF, one offline HTML page",
                                    "qkv map model.safetensors --text abababab --out map.html", declare_map});

}  // namespace
}  // namespace qkv::cli
