// `qkv map`: draws attention, from a trained model and a text, from a tensor of weights, or from q and k (--qk: the
// explorer).
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/escape.h"
#include "map/maps.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/trainer.h"
#include "qkv/view/explorer.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/options.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr std::string_view kDefaultText = "abababab";
constexpr std::string_view kOfHeads[] = {"q", "k", "lse", "sinks", "alibi", "relative"};  // docs/explorer-file.md

struct MapCommandOptions {
  std::string file, qk, tokens, text, title, theme;  // theme empty: dark
  std::vector<std::string> out;
  std::optional<Index> sequence;
  MapStyle style;
  ComputeOptions compute;
};

std::string default_text(const lm::CharTokenizer& tokenizer, Index context) {
  for (const char32_t letter : {U'a', U'b'}) {
    if (std::ranges::find(tokenizer.characters(), letter) == tokenizer.characters().end())
      throw UsageError(fmt::format("give --text: the model does not know a and b of the default, {}: it knows {}",
          kDefaultText, one_line(tokenizer.describe())));
  }
  return std::string(kDefaultText.substr(0, static_cast<std::size_t>(context)));
}

view::AttentionMap map_of_model(
    const std::string& file, const StateDict& state, const MapCommandOptions& options, Context& context) {
  const lm::Checkpoint checkpoint = about_file("FILE", file, [&] { return lm::checkpoint_from_state(state); });
  const Index longest = checkpoint.model.config().context;
  const std::string text = options.text.empty() ? default_text(checkpoint.tokenizer, longest) : options.text;
  const std::vector<Index> ids = about("--text", [&] { return checkpoint.tokenizer.encode(text); });
  if (static_cast<Index>(ids.size()) > longest) {
    throw UsageError(fmt::format(
        "--text must be at most as long as the model's context, {}: got {} characters", longest, ids.size()));
  }
  const lm::AttentionReport report = lm::attention_report(checkpoint.model, ids, context);
  return view::make_map(View<const float, 4>(report.weights), view::characters(text), "attention of \"" + text + "\"");
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
  // [1, H, Tq, Tk]
  const View<const float, 4> chosen = std::as_const(weights).view<4>().sliced(0, sequence, sequence + 1);
  const std::vector<std::string> labels = view::characters(options.text);
  view::AttentionMap map = about(escaped(file), [&] { return view::make_map(chosen, {}, "attention weights"); });
  const auto count = static_cast<Index>(labels.size());
  if (count == 0) return map;
  if (count != map.kv_len() && count != map.q_len()) {
    throw UsageError(fmt::format(
        "--text must have one character per key ({}) or query ({}): got {}", map.kv_len(), map.q_len(), count));
  }
  if (count == map.kv_len()) map.key_tokens = labels;
  if (count == map.q_len()) map.query_tokens = labels;
  return map;
}

view::AttentionMap make_map(const MapCommandOptions& options, Context& context) {
  const std::string& file = options.file;
  if (file.empty()) throw UsageError("give one file: a model that qkv train wrote, or weights, w.npy");
  if (ending(file) != ".safetensors") return map_of_weights(file, load_npy("FILE", file), options);
  const StateDict state = load_safetensors("FILE", file);
  if (const AnyTensor* weights = state.find("weights")) return map_of_weights(file, *weights, options);
  if (state.contains("q") && state.contains("k")) {
    const auto known = [](const auto& entry) { return std::ranges::find(kOfHeads, entry.name) != std::end(kOfHeads); };
    if (std::ranges::all_of(state.entries(), known))
      throw UsageError(escaped(file) + " holds q and k: give it as --qk " + escaped(file) + " --out PAGE.html");
    throw UsageError(escaped(file) + " holds q, k and no weights: to see weights, qkv attend --in " + escaped(file) +
                     " --out o.safetensors --weights, then qkv map o.safetensors");
  }
  if (options.sequence) throw UsageError("--sequence is for weights: a model reads one text, --text");
  return map_of_model(file, state, options, context);
}

struct ExplorerTokens {
  std::vector<std::string> queries, keys;
};

std::vector<std::string> strings_of(const Json& list, const std::string& path) {
  try {
    return list.get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    throw UsageError(
        "--tokens " + escaped(path) + R"( must be a JSON list of strings, or {"queries": [...], "keys": [...]})");
  }
}

ExplorerTokens load_tokens(const std::string& path) {
  if (path.empty()) return {};
  // What nests deeper than it may is left out: a copy would run out of stack.
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) { return depth < 4; };
  const Json json = Json::parse(load_text("--tokens", path), shallow, false);
  if (json.is_discarded()) throw UsageError("--tokens " + escaped(path) + " is not JSON");
  if (!json.is_object()) return {strings_of(json, path), strings_of(json, path)};
  for (const auto& [name, list] : json.items()) {
    if (name != "queries" && name != "keys")
      throw UsageError("--tokens " + escaped(path) + " may hold queries and keys: got " + escaped(name));
  }
  return {strings_of(json.value("queries", Json::array()), path), strings_of(json.value("keys", Json::array()), path)};
}

/// One for each position of a tensor [H, T, D] of --qk; what is wrong with that one is said elsewhere.
void check_count(
    const std::string& path, const char* whose, const std::vector<std::string>& tokens, const AnyTensor* of) {
  if (tokens.empty() || of == nullptr || of->sizes.size() != 3 || std::ssize(tokens) == of->sizes[1]) return;
  throw UsageError(fmt::format("--tokens {}: {} must be one for each of the {} positions in --qk: got {}",
      escaped(path), whose, of->sizes[1], tokens.size()));
}

/// From a file of q and k, or of the explorer's full form (docs/explorer-file.md).
std::string explorer_page(
    const std::string& qk, const std::string& tokens, const std::string& title, Context& context) {
  StateDict state = load_safetensors("--qk", qk);
  if (state.metadata.contains("explorer")) {
    if (!tokens.empty()) throw UsageError("--tokens are for the small form: " + escaped(qk) + " names its own");
    if (!title.empty()) throw UsageError("--title is for the small form: " + escaped(qk) + " has its own");
  } else {
    if (!title.empty()) state.metadata["title"] = title;
    const ExplorerTokens labels = load_tokens(tokens);
    check_count(tokens, "queries", labels.queries, state.find("q"));
    check_count(tokens, "keys", labels.keys, state.find("k"));
    state =
        about_file("--qk", qk, [&] { return view::explorer_of_heads(state, labels.queries, labels.keys, context); });
  }
  return about_file("--qk", qk, [&] { return view::render_explorer(state); });
}

/// --qk: the explorer's page. Options of pictures have no meaning there, and are refused.
int run_explorer(const MapCommandOptions& options, Context& context) {
  const MapStyle& style = options.style;
  if (!options.file.empty()) throw UsageError("give one file: a model, weights or --qk");
  if (!options.text.empty() || options.sequence || !options.theme.empty() || !style.layers.empty() ||
      !style.heads.empty() || !style.range.empty() || !style.scale.empty() || style.columns || style.pixel_ratio)
    throw UsageError("--qk goes with --tokens, --title and --out: the page itself chooses heads, ranges and colours");
  if (options.out.size() != 1) throw UsageError("--qk needs one --out PAGE.html");
  Outputs outputs;
  outputs.protect(options.qk);
  outputs.protect(options.tokens);
  outputs.expect("--out", options.out.front(), {".html"});
  outputs.add(options.out.front(), explorer_page(options.qk, options.tokens, options.title, context));
  outputs.commit();
  print_line("wrote " + one_line(options.out.front()));
  return 0;
}

void check_drawn(const char* option, const std::vector<Index>& drawn, Index count) {
  for (const Index one : drawn) {
    if (one < 0 || one >= count) throw UsageError(fmt::format("{} must be in 0 .. {}: got {}", option, count - 1, one));
  }
}

int run_map(const MapCommandOptions& options) {
  Context context(options.compute.context());  // also of weights, which need none: a wrong --isa is refused
  if (!options.qk.empty()) return run_explorer(options, context);
  if (!options.tokens.empty())
    throw UsageError("--tokens goes with --qk; a model's tokens are the characters of --text");
  Outputs outputs;
  outputs.protect(options.file);
  for (const std::string& path : options.out) expect_map(outputs, "--out", path);
  const view::PixelOptions pixels = options.style.pixels(options.out);
  const view::MapOptions style = options.style.map();
  if (!options.out.empty() && !options.theme.empty())
    throw UsageError("--theme is for the picture on the terminal: there is none here");
  view::AttentionMap map = make_map(options, context);
  check_drawn("--layers", style.layers, map.num_layers());
  check_drawn("--heads", style.heads, map.num_heads());
  if (!options.title.empty()) map.title = options.title;
  for (const std::string& path : options.out) add_map(outputs, path, map, style, pixels);
  outputs.commit();
  for (const std::string& path : options.out) print_line("wrote " + one_line(path));
  if (!options.out.empty()) return 0;
  view::TerminalOptions shown = map_options(style);
  shown.theme = options.theme == "light" ? view::Theme::kLight : view::Theme::kDark;
  print(view::render_terminal(map, shown));
  return 0;
}

void declare_map(Options& add, MapCommandOptions& options) {
  add("FILE", &options.file, "A model that qkv train wrote, or weights [Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk], .npy");
  add("--qk FILE", &options.qk, "q, k and lse of heads, .safetensors: the explorer's page, see docs/explorer-file.md");
  add("--tokens FILE", &options.tokens, "With --qk: its tokens, a JSON list of strings");
  add("--text TEXT", &options.text,
      "The text that the model reads (default abababab, cut to its context); with weights: labels");
  add("--sequence N", &options.sequence, "Which sequence of [B, H, Tq, Tk] (default 0)");
  add("--out FILE", &options.out, "A .png, .svg, .pdf or .html; may be repeated (default: the terminal)");
  add("--title TEXT", &options.title, "Title above the picture");
  add("--theme NAME", &options.theme, "Colours of the terminal: dark or light (default dark)",
      {.among = {"dark", "light"}});
  options.style.add_to(add);
  add.compute(options.compute);
}

const bool map_added = add_command({"map", "Draw attention: terminal, PNG, SVG, PDF, one offline HTML page",
                                       "qkv map model.safetensors --text abababab --out map.html"},
    declare_map, run_map);

}  // namespace
}  // namespace qkv::cli
