#include "attend/options.h"

#include "core/escape.h"
#include "mask/expression.h"
#include "support/command.h"
#include "support/option_group.h"

namespace qkv::cli {
namespace {

/// "L,R" or "L,R,top-left".
struct Window {
  Index left = -1, right = -1;
  Align align = Align::kSquare;
};

Window parse_window(const std::string& text) {
  const std::size_t first = text.find(',');
  const std::size_t second = first == std::string::npos ? first : text.find(',', first + 1);
  if (first == std::string::npos) {
    throw UsageError("--window must be LEFT,RIGHT, such as 255,0 (-1: no bound): got " + escaped(text));
  }
  const std::vector<Index> counts = parse_indices("--window", text.substr(0, second));
  Window window{counts[0], counts[1], Align::kSquare};
  if (second != std::string::npos) window.align = parse_align("--window", text.substr(second + 1));
  return window;
}

/// The library's error would use its own names; a person here types options.
void require_alignment(const std::string& bare, const std::string& joint, Align align, Index q_len, Index kv_len) {
  if (align != Align::kSquare || q_len == kv_len) return;
  throw UsageError(bare + " alone needs as many queries as keys: use " + bare + joint +
                   "bottom-right (the last query sees the last key) or " + bare + joint +
                   "top-left (the first sees the first), or give --offsets: got Tq " + std::to_string(q_len) + ", Tk " +
                   std::to_string(kv_len));
}

/// An option whose value may be left out.
void add_with_optional_value(CLI::App& app, const std::string& name, std::string& path, bool& wanted, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         name,
         [&path, &wanted](const std::vector<std::string>& values) {
           wanted = true;
           if (!values.empty()) path = values[0];
         },
         help)
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->trigger_on_parse();
}

}  // namespace

void add_attend_options(CLI::App& app, AttendOptions& options) {
  const OptionGroup in(app, "Tensors in (.npy, or one .safetensors with the names q k v dout bias keep drop)");
  in.file("--q", options.q, "Queries [B, H, Tq, D], f32 or f64");
  in.file("--k", options.k, "Keys [B, Hkv, Tk, D]");
  in.file("--v", options.v, "Values [B, Hkv, Tk, Dv]");
  in.file("--dout", options.dout, "Gradient arriving at the output [B, H, Tq, Dv]");
  in.file("--bias", options.bias, "Added to the scores [B|1, H|1, Tq|1, Tk|1]");
  in.file("--in", options.in, "All of them in one .safetensors");

  const OptionGroup out(app, "Tensors out (.npy, or one .safetensors)");
  out.file("--out", options.out, "Output [B, H, Tq, Dv], of q's type")->required();
  add_with_optional_value(app, "--weights", options.weights, options.wants_weights, "Weights [B, H, Tq, Tk], before dropout");
  add_with_optional_value(app, "--applied", options.applied, options.wants_applied, "Weights after dropout");
  for (const char* name : {"--weights", "--applied"}) out.take(name);
  out.file("--lse", options.lse, "Log-sum-exp of each row [B, H, Tq]");
  out.file("--dq", options.dq, "Gradient of the queries");
  out.file("--dk", options.dk, "Gradient of the keys");
  out.file("--dv", options.dv, "Gradient of the values");
  out.file("--dbias", options.dbias, "Gradient of the bias, in its shape");

  const OptionGroup who(app, "Masks (every mask that is given must allow a key)");
  who.flag("--causal{square}", options.causal, "No key after the query; =top-left or =bottom-right when Tq != Tk");
  who.value("--window", options.window, "L,R[,ALIGN]", "At most L keys before the query's own and R after; -1: no bound");
  who.value("--offsets", options.offsets, "N,N,...",
            "Diagonal j = i + offset of --causal and --window, one offset per sequence");
  who.value("--key-lengths", options.key_lengths, "N,N,...", "Number of keys of each sequence");
  who.value("--mask", options.mask, "EXPR", "A mask expression, such as \"causal | prefix(3)\": see qkv mask --help");
  who.file("--keep", options.keep, "Non-zero: may attend; [B|1, H|1, Tq|1, Tk|1] or --mask-axes");
  who.file("--drop", options.drop, "Non-zero: may not attend");
  who.value("--mask-axes", options.mask_axes, "AXES", "Axes of a smaller mask: bk, qk, bqk, hqk");

  const OptionGroup how(app, "How");
  how.value("--scale", options.scale, "X", "Factor on the scores (default 1/sqrt(D))");
  how.value("--softcap", options.softcap, "X", "c tanh(score / c); 0: off");
  how.value("--empty-row", options.empty_row, "HOW", "A row without keys gives zero, mean or nan (default zero)");
  how.value("--dropout", options.dropout, "P", "Dropout probability of the weights, as in training");
  how.integer("--seed", options.seed, "Seed of the dropout (default 0)");
  add_compute_options(app, options.compute);
}

Mask structural_mask(const AttendOptions& options, Index q_len, Index kv_len) {
  Mask mask;
  std::vector<Index> offsets;
  if (!options.offsets.empty()) {
    offsets = parse_indices("--offsets", options.offsets);
    if (options.causal.empty() && options.window.empty()) throw UsageError("--offsets needs --causal or --window to act on");
  }
  if (!options.causal.empty()) {
    const Align align = parse_align("--causal", options.causal);
    if (!offsets.empty() && align != Align::kSquare) throw UsageError("--offsets replaces the alignment: give --causal alone");
    if (offsets.empty()) require_alignment("--causal", "=", align, q_len, kv_len);
    mask = mask & (offsets.empty() ? Mask::causal(align) : Mask::causal(offsets));
  }
  if (!options.window.empty()) {
    const Window window = parse_window(options.window);
    if (!offsets.empty() && window.align != Align::kSquare)
      throw UsageError("--offsets replaces the alignment: give --window L,R");
    if (offsets.empty()) require_alignment("--window L,R", ",", window.align, q_len, kv_len);
    mask = mask & (offsets.empty() ? Mask::window(window.left, window.right, window.align)
                                   : Mask::window(window.left, window.right, offsets));
  }
  if (!options.key_lengths.empty()) mask = mask & Mask::key_lengths(parse_indices("--key-lengths", options.key_lengths));
  if (!options.mask.empty()) mask = mask & parse_mask("--mask", options.mask, q_len, kv_len);
  return mask;
}

AttentionOptions attention_options(const AttendOptions& options, Mask mask) {
  AttentionOptions result;
  result.mask = std::move(mask);
  result.scale = options.scale;
  result.softcap = options.softcap;
  result.empty_row = parse_empty_row(options.empty_row);
  result.dropout = {.p = options.dropout, .seed = options.seed, .training = options.dropout != 0};
  return result;
}

}  // namespace qkv::cli
