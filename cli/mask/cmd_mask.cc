// `qkv mask`: a mask in words, drawn as 0s and 1s and counted.
#include <fmt/format.h>

#include "core/escape.h"
#include "map/maps.h"
#include "mask/expression.h"
#include "qkv/attention.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

constexpr Index kMostCells = 1 << 22;  // of a drawing
constexpr Index kWidestDrawing = 200;  // columns of text

struct MaskOptions {
  std::string expression;
  Index q_len = 8, kv_len = 0, batch = 1, num_heads = 1, head_dim = 64;
  bool draw = false, json = false;
  std::string out;
  ComputeOptions compute;
};

/// A view of [B, H, T, D] in which every row is the same: plans read no numbers.
View<const float, 4> rows_of_zeros(const Tensor<float>& row, Index batch, Index heads, Index length) {
  return {row.data(), {batch, heads, length, row.size(0)}, {0, 0, 0, 1}};
}

AttentionPlan plan_of(const MaskOptions& o, const Mask& mask, Context& context) {
  const Tensor<float> row({o.head_dim});
  return attention_plan(rows_of_zeros(row, o.batch, o.num_heads, o.q_len),
      rows_of_zeros(row, o.batch, o.num_heads, o.kv_len), rows_of_zeros(row, o.batch, o.num_heads, o.kv_len),
      {.mask = mask}, context);
}

/// [B, H, Tq, Tk] of 0 and 1.
Tensor<std::uint8_t> drawing_of(const MaskOptions& o, const Mask& mask) {
  const double cells =
      static_cast<double>(o.batch * o.num_heads) * static_cast<double>(o.q_len) * static_cast<double>(o.kv_len);
  if (cells > static_cast<double>(kMostCells)) {
    throw UsageError(
        fmt::format("a drawing holds at most {} pairs: got {} x {} x {} x {}; leave out --draw and --out to count them",
            kMostCells, o.batch, o.num_heads, o.q_len, o.kv_len));
  }
  Tensor<std::uint8_t> drawn({o.batch, o.num_heads, o.q_len, o.kv_len});
  mask_to_dense(mask, drawn);
  return drawn;
}

void print_drawing(const Tensor<std::uint8_t>& drawn) {
  const View<const std::uint8_t, 4> cells = drawn;
  if (cells.size(3) > kWidestDrawing) {
    throw UsageError(fmt::format(
        "--draw shows at most {} keys: got {}; draw into a file with --out mask.png", kWidestDrawing, cells.size(3)));
  }
  for (Index b = 0; b < cells.size(0); ++b) {
    for (Index h = 0; h < cells.size(1); ++h) {
      if (cells.size(0) * cells.size(1) > 1) print_line(fmt::format("sequence {}, head {}", b, h));
      for (Index i = 0; i < cells.size(2); ++i) {
        std::string line;
        for (Index j = 0; j < cells.size(3); ++j) line += fmt::format("{}{}", j == 0 ? "" : " ", cells(b, h, i, j));
        print_line(line);
      }
    }
  }
}

view::AttentionMap map_of(const Tensor<std::uint8_t>& drawn, const std::string& title) {
  Tensor<float> weights(drawn.sizes());
  for (Index n = 0; n < drawn.count(); ++n) weights.data()[n] = static_cast<float>(drawn.data()[n]);
  return view::make_map(View<const float, 4>(weights), {}, title);
}

int run_mask(const MaskOptions& given) {
  MaskOptions o = given;
  if (o.kv_len == 0) o.kv_len = o.q_len;
  Outputs outputs;
  expect_map(outputs, "--out", o.out);
  const Mask mask = parse_mask("EXPR", o.expression, o.q_len, o.kv_len);
  Context context(o.compute.context());
  const AttentionPlan plan = about("EXPR " + escaped(o.expression), [&] { return plan_of(o, mask, context); });
  const double all =
      static_cast<double>(o.batch * o.num_heads) * static_cast<double>(o.q_len) * static_cast<double>(o.kv_len);
  const double kept = plan.forward_flops / (4.0 * static_cast<double>(o.head_dim));
  const std::string described = mask.describe();
  const bool wants_cells = o.draw || !o.out.empty();
  const Tensor<std::uint8_t> drawn = wants_cells ? drawing_of(o, mask) : Tensor<std::uint8_t>();
  if (!o.out.empty()) add_map(outputs, o.out, map_of(drawn, described));
  if (o.json) {
    Json document = {{"mask", described}, {"batch", o.batch}, {"heads", o.num_heads}, {"q_len", o.q_len},
        {"kv_len", o.kv_len}, {"pairs", all}, {"kept", kept},
        {"tiles", {{"isa", isa_name(plan.isa)}, {"head_dim", o.head_dim}, {"algorithm", plan.algorithm},
                      {"keys", plan.key_tile}, {"full", plan.full_tiles}, {"partial", plan.partial_tiles},
                      {"skipped", plan.skipped_tiles}}}};
    if (o.draw) document["drawing"] = nested(drawn);
    outputs.commit();
    print_json(document);
    return 0;
  }
  if (o.draw) print_drawing(drawn);
  outputs.commit();
  print_line(faint(fmt::format("{}   Tq {}, Tk {}", described, o.q_len, o.kv_len)));
  print_line(faint(fmt::format(
      "{:.0f} of {:.0f} pairs kept ({:.2f} %); tiles of {} keys: {} full, {} partial, {} skipped ({}, f32, D {})", kept,
      all, all == 0 ? 0 : 100 * kept / all, plan.key_tile, plan.full_tiles, plan.partial_tiles, plan.skipped_tiles,
      isa_name(plan.isa), o.head_dim)));
  if (!o.out.empty()) print_line("wrote " + one_line(o.out));
  return 0;
}

void declare_mask(Options& add, MaskOptions& options) {
  add("EXPR", &options.expression, "The mask: leaves joined by & (binds first) and |, with parentheses",
      {.required = true});
  std::string leaves = "\nLeaves, each explained in docs/cli/mask.md:";
  for (const std::string& word : mask_words()) leaves += "\n  " + word;
  add.footer(leaves);
  const Rule count{.least = 1, .most = 1 << 24};
  add("--tq N", &options.q_len, "Queries (default 8)", count);
  add("--tk N", &options.kv_len, "Keys (default: as many as queries)", count);
  add("--batch N", &options.batch, "Sequences (default 1)", count);
  add("--heads N", &options.num_heads, "Heads (default 1)", count);
  add("--head-dim N", &options.head_dim, "Width of a head, which decides the tiles (default 64)", count);
  add("--draw", &options.draw, "Rows of 0s and 1s: a row is a query, a column a key");
  add("--out FILE", &options.out, "The mask as a picture: .png, .svg, .pdf or .html");
  add.json(options.json);
  add.compute(options.compute);
}

const bool mask_added = add_command({"mask", "A mask in words: drawn, counted, as a picture",
                                        "qkv mask \"causal & window(2,0) | first(1)\" --tq 8 --tk 8 --draw"},
    declare_mask, run_mask);

}  // namespace
}  // namespace qkv::cli
