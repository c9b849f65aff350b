// qkv gradcheck: the derivatives of every order under the options of `qkv attend`, at small random sizes. Not: the checks
// (gradcheck.cc).
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "attend_options.h"
#include "command.h"
#include "core/escape.h"
#include "files.h"
#include "gradcheck.h"
#include "json.h"
#include "text.h"

namespace qkv::cli {
namespace {

// Streams of random numbers.
constexpr std::uint32_t kBiasStream = 20, kSinkStream = 21, kPositionStream = 22;

struct Options {
  AttendOptions attend;
  std::string sizes, align;
  bool sinks = false, alibi = false, json = false;
  Index t5_buckets = 0, relative_reach = 0;
};

/// "2,4,2,6,6,4,3": B, H, Hkv, Tq, Tk, D, Dv.
GradcheckSizes parse_sizes(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<Index> n = parse_indices("--sizes", text);
  if (n.size() != 7 || std::ranges::min(n) < 0) {
    throw UsageError("--sizes must be B,H,HKV,TQ,TK,D,DV, such as 2,4,2,6,6,4,3: got " + escaped(text));
  }
  // Each of some thousand elements takes four runs of forward and backward.
  if (n[0] * (n[1] * n[3] + n[2] * n[4]) * std::max(n[5], n[6]) > 20000) {
    throw UsageError("--sizes must be small, since every element is moved by itself: got " + escaped(text));
  }
  return {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

/// A file, or the axes that a random bias does not repeat: "bhqk", "hqk", "k".
Tensor<double> read_bias(const std::string& text, const GradcheckSizes& s, std::uint64_t seed) {
  if (text.find_first_not_of("bhqk") != std::string::npos) return to_f64(load_npy("--bias", text));
  const auto size = [&text](char axis, Index full) { return text.find(axis) == std::string::npos ? 1 : full; };
  return random_tensor({size('b', s.batch), size('h', s.num_heads), size('q', s.q_len), size('k', s.kv_len)}, seed,
                       kBiasStream);
}

/// Random sinks and the position bias, as the options say.
void add_modifiers(const Options& options, const GradcheckSizes& s, GradcheckInput& input) {
  const std::uint64_t seed = options.attend.seed;
  if (options.sinks) {
    input.sinks = random_tensor({s.num_heads}, seed, kSinkStream);
    input.options.sinks = input.sinks;
  }
  if (options.alibi + (options.t5_buckets != 0) + (options.relative_reach != 0) > 1) {
    throw UsageError("--alibi, --t5 and --relative exclude one another");
  }
  const Align align = options.align.empty() ? Align::kSquare : parse_align("--position-align", options.align);
  const auto table = [&](Index rows) {
    if (rows < 1 || rows > 1000) throw UsageError("--t5 and --relative must be small positive numbers");
    input.position = random_tensor({rows, s.num_heads}, seed, kPositionStream);
    return View<const double, 2>(input.position);
  };
  if (options.alibi) {
    const std::vector<double> slopes = alibi_slopes(s.num_heads);
    input.position = Tensor<double>({1, s.num_heads});
    std::ranges::copy(slopes, input.position.data());
    input.options.position_bias = PositionBias::alibi(slopes, align);
  }
  if (options.t5_buckets != 0) {
    const Index distance = std::max<Index>(4, options.t5_buckets);  // small sizes reach the last bucket
    const View<const double, 2> rows = table(options.t5_buckets);
    input.options.position_bias = PositionBias::t5(rows, {options.t5_buckets, distance, true}, align);
  }
  if (options.relative_reach != 0) {
    input.options.position_bias = PositionBias::relative(table(2 * options.relative_reach + 1), align);
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

int run(const Options& options) {
  const AttendOptions& attend = options.attend;
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

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--sizes", options->sizes, "B,H,HKV,TQ,TK,D,DV (default 2,4,2,6,6,4,3)")->type_name("N,N,..");
  app.add_option("--bias", options->attend.bias, "A bias: the axes of a random one (bhqk, hqk, k ..) or a .npy")
      ->type_name("AXES|FILE");
  app.add_flag("--sinks", options->sinks, "A random logit a head beside its keys");
  app.add_flag("--alibi", options->alibi, "Minus slope times distance");
  app.add_option("--t5", options->t5_buckets, "T5's relative position bias with a random table of N buckets")->type_name("N");
  app.add_option("--relative", options->relative_reach, "A random bias by distance, up to N to each side")->type_name("N");
  app.add_option("--position-align", options->align, "Where queries stand when Tq != Tk: top-left or bottom-right")
      ->type_name("ALIGN");
  add_formula_options(app, options->attend);
  add_json_option(app, options->json);
  return [options] { return run(*options); };
}

const bool added = add_command({"gradcheck", "Derivatives of every order against differences, under any options of attend",
                                "qkv gradcheck --causal --softcap 5 --bias hqk --dropout 0.1", declare});

}  // namespace
}  // namespace qkv::cli
