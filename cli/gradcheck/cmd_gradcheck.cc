// qkv gradcheck: the derivatives of every order under the options of `qkv attend`, at small random sizes. Not: the checks
// (gradcheck.cc).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "attend/modifiers.h"
#include "attend/options.h"
#include "core/escape.h"
#include "gradcheck/gradcheck.h"
#include "support/command.h"
#include "support/files.h"
#include "support/integer_option.h"
#include "support/json.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

// Streams of random numbers.
constexpr std::uint32_t kBiasStream = 20, kSinkStream = 21, kPositionStream = 22;

struct GradcheckCommandOptions {
  AttendOptions attend;
  ModifierOptions modifiers;  // files, or what is drawn: "random" sinks, numbers as --t5 and --relative
  std::optional<Index> t5_max_distance;
  std::string sizes;
  bool json = false;
};

constexpr const char* kRandom = "random";

/// "2,4,2,6,6,4,3": B, H, Hkv, Tq, Tk, D, Dv.
GradcheckSizes parse_sizes(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<Index> n = parse_indices("--sizes", text);
  if (n.size() != 7 || std::ranges::min(n) < 0) {
    throw UsageError("--sizes must be B,H,HKV,TQ,TK,D,DV, such as 2,4,2,6,6,4,3: got " + escaped(text));
  }
  // Each of some thousand elements takes four runs of forward and backward.
  if (n[0] * (n[1] * n[3] + n[2] * n[4]) * std::max(n[5], n[6]) > 20000) {
    throw UsageError("--sizes must be small, since every element is varied separately: got " + escaped(text));
  }
  return {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

/// A file, or the axes that a random bias does not repeat: "bhqk", "hqk", "k".
Tensor<double> read_bias(const std::string& text, const GradcheckSizes& s, std::uint64_t seed) {
  if (text.find_first_not_of("bhqk") != std::string::npos) return to_f64(load_npy("--bias", text));
  for (const char axis : text) {
    if (std::ranges::count(text, axis) > 1)
      throw UsageError("--bias must name each of the axes b, h, q, k once: got " + escaped(text));
  }
  const auto size = [&text](char axis, Index full) { return text.find(axis) == std::string::npos ? 1 : full; };
  return random_tensor({size('b', s.batch), size('h', s.num_heads), size('q', s.q_len), size('k', s.kv_len)}, seed,
                       kBiasStream);
}

/// `text` as a small number above 0, of which a random table is made; none: it names a file.
std::optional<Index> drawn_size(const char* option, const std::string& text) {
  Index n = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, n);
  if (text.empty() || next != end) return {};
  if (error != std::errc() || n < 1 || n > 500) {
    throw UsageError(std::string(option) + " must be a number from 1 to 500, or a .npy file: got " + escaped(text));
  }
  return n;
}

/// Sinks and the position bias, as the options say: from files, or drawn.
void add_modifiers(const GradcheckCommandOptions& options, const GradcheckSizes& s, GradcheckInput& input) {
  const std::uint64_t seed = options.attend.seed;
  ModifierOptions wanted = options.modifiers;
  std::optional<AnyTensor> sinks, table;
  if (wanted.sinks == kRandom) {
    sinks = any_tensor(random_tensor({s.num_heads}, seed, kSinkStream));
  } else if (!wanted.sinks.empty()) {
    sinks = load_npy("--sinks", wanted.sinks);
  }
  const std::optional<Index> buckets = drawn_size("--t5", wanted.t5), reach = drawn_size("--relative", wanted.relative);
  const auto draw = [&](Index rows) { return any_tensor(random_tensor({rows, s.num_heads}, seed, kPositionStream)); };
  if (buckets) {
    table = draw(*buckets);
    wanted.t5_max_distance = std::max<Index>(4, *buckets);  // small sizes reach the last bucket
  }
  if (reach) table = draw(2 * *reach + 1);
  if (options.t5_max_distance) wanted.t5_max_distance = *options.t5_max_distance;
  Modifiers<double> modifiers(wanted, sinks, s.num_heads, input.options, table);
  // What the options borrow moves with the tensors that hold it.
  input.sinks = std::move(modifiers.sinks);
  input.position = std::move(modifiers.table);
  if (input.options.position_bias.is_alibi()) {
    const std::vector<double>& slopes = input.options.position_bias.slopes();
    input.position = Tensor<double>({1, static_cast<Index>(slopes.size())});
    std::ranges::copy(slopes, input.position.data());
  }
}

std::string kind_of(const GradcheckSizes& s) {
  return fmt::format("B {}, H {}, Hkv {}, Tq {}, Tk {}, D {}, Dv {}", s.batch, s.num_heads, s.num_kv_heads, s.q_len, s.kv_len,
                     s.head_dim, s.v_head_dim);
}

void print_rows(const std::vector<GradcheckRow>& rows) {
  const auto line = [](auto... cells) { return fmt::format("{:<16} {:<24} {:>8} {:>9} {:>9}  {}", cells...); };
  print_line(faint(line("check", "of", "elements", "error", "bound", "")));
  for (const GradcheckRow& row : rows) {
    const std::string text = line(row.check, row.tensor, row.elements, fmt::format("{:.1e}", row.error),
                                  fmt::format("{:.1e}", row.bound), row.holds ? "ok" : "FAILS");
    print_line(row.holds ? text : bold(text));
  }
}

int run_gradcheck(const GradcheckCommandOptions& options) {
  const AttendOptions& attend = options.attend;
  if (!attend.mask_axes.empty() && attend.keep.empty() && attend.drop.empty()) {
    throw UsageError("--mask-axes needs --keep or --drop");
  }
  const GradcheckSizes sizes = parse_sizes(options.sizes);
  GradcheckInput input = gradcheck_input(sizes, attend.seed);
  std::vector<Tensor<std::uint8_t>> dense;
  Mask mask = structural_mask(attend, sizes.q_len, sizes.kv_len);
  const auto add_dense = [&](const char* option, const std::string& path, bool keep) {
    if (path.empty()) return;
    dense.push_back(to_bool(load_npy(option, path)));
    mask = mask & dense_mask(option, dense.back(), attend.mask_axes, keep);
  };
  add_dense("--keep", attend.keep, true);
  add_dense("--drop", attend.drop, false);
  input.options = attention_options(attend, std::move(mask));
  if (!attend.bias.empty()) {
    input.bias = read_bias(attend.bias, sizes, attend.seed);
    input.options.bias = input.bias;
  }
  add_modifiers(options, sizes, input);
  Context context(attend.compute.context());
  const std::vector<GradcheckRow> rows = run_gradcheck(input, attend.seed, context);
  const bool holds = std::ranges::all_of(rows, &GradcheckRow::holds);
  if (options.json) {
    Json checks = Json::array();
    for (const GradcheckRow& row : rows) {
      checks.push_back({{"check", row.check},
                        {"of", row.tensor},
                        {"elements", row.elements},
                        {"error", row.error},
                        {"bound", row.bound},
                        {"holds", row.holds}});
    }
    print_json({{"sizes", kind_of(sizes)},
                {"seed", attend.seed},
                {"isa", isa_name(context.isa())},
                {"checks", checks},
                {"holds", holds}});
    return holds ? 0 : 1;
  }
  print_line(bold("Derivatives against differences, f64"));
  print_line(faint(kind_of(sizes) + fmt::format("; seed {}, {}", attend.seed, isa_name(context.isa()))));
  print_line();
  print_rows(rows);
  print_line();
  print_line(holds ? "Every derivative is what it is the derivative of, within what steps and rounding explain."
                   : bold("Some derivatives are wrong: see FAILS above."));
  print_line(
      faint("bound = |difference over 2h - over h| + eps x terms x size / h, h = 2^-17; shown: the element nearest to it"));
  return holds ? 0 : 1;
}

std::function<int()> declare_gradcheck(CLI::App& app) {
  auto options = std::make_shared<GradcheckCommandOptions>();
  app.add_option("--sizes", options->sizes, "B,H,HKV,TQ,TK,D,DV (default 2,4,2,6,6,4,3)")->type_name("N,N,...");
  app.add_option("--bias", options->attend.bias, "A bias: the axes of a random one (bhqk, hqk, k, ...) or a .npy")
      ->type_name("AXES|FILE");
  ModifierOptions& modifiers = options->modifiers;
  app.add_option("--sinks", modifiers.sinks, "Sinks: one extra logit per head, random or [H] from a .npy")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str(kRandom);
  app.add_flag("--alibi{heads}", modifiers.alibi, "ALiBi: minus slope times distance; =S,S,... sets the slopes");
  app.add_option("--t5", modifiers.t5, "T5's relative position bias: a random table of N buckets, or one from a .npy")
      ->type_name("N|FILE");
  add_integer(app, "--t5-max-distance", options->t5_max_distance,
              "Distances from here on share one bucket (default 128; as many as N)", 1);
  app.add_flag("--t5-past", modifiers.t5_past, "T5's decoder: later keys share a bucket");
  for (const char* name : {"--t5-max-distance", "--t5-past"}) app.get_option(name)->needs(app.get_option("--t5"));
  app.add_option("--relative", modifiers.relative, "A bias by distance: random, up to N to each side, or a table from a .npy")
      ->type_name("N|FILE");
  app.add_option("--position-align", modifiers.align, "Alignment of positions when Tq != Tk: top-left or bottom-right")
      ->type_name("ALIGN");
  add_formula_options(app, options->attend);
  add_json_option(app, options->json);
  return [options] { return run_gradcheck(*options); };
}

const bool gradcheck_added =
    add_command({"gradcheck", "Derivatives of every order against differences, under any options of attend",
                 "qkv gradcheck --causal --softcap 5 --bias hqk --dropout 0.1", declare_gradcheck});

}  // namespace
}  // namespace qkv::cli
