#include "attend/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/escape.h"
#include "mask/expression.h"
#include "support/files.h"

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
  if (first == std::string::npos)
    throw UsageError("--window must be LEFT,RIGHT, such as 255,0 (-1: no bound): got " + escaped(text));
  const std::vector<Index> counts = parse_indices("--window", text.substr(0, second));
  Window window{counts[0], counts[1], Align::kSquare};
  if (second != std::string::npos) window.align = parse_align("--window L,R,ALIGN: ALIGN", text.substr(second + 1));
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

struct FileOption {
  const char *name, *help;
};
constexpr FileOption kRead[] = {{"q", "Queries [B, H, Tq, D], f32 or f64"}, {"k", "Keys [B, Hkv, Tk, D]"},
    {"v", "Values [B, Hkv, Tk, Dv]"}, {"dout", "Gradient arriving at the output [B, H, Tq, Dv]"},
    {"bias", "Added to the scores [B|1, H|1, Tq|1, Tk|1]"}};
constexpr FileOption kWritten[] = {{"lse", "Log-sum-exp of each row [B, H, Tq]"}, {"dq", "Gradient of the queries"},
    {"dk", "Gradient of the keys"}, {"dv", "Gradient of the values"}, {"dbias", "Gradient of the bias, in its shape"}};

}  // namespace

template <class T> Tensor<T> typed(const std::string& source, const AnyTensor& tensor) {
  if (tensor.sizes.size() != 4) throw UsageError(source + ": must have four axes [B, H, T, D]: got " + tensor.shape());
  const bool is_float = tensor.dtype == DType::kF32 || tensor.dtype == DType::kF64 || tensor.dtype == DType::kF16 ||
                        tensor.dtype == DType::kBF16;
  if (!is_float) throw UsageError(source + ": must hold floats: got " + std::string(dtype_name(tensor.dtype)));
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_f32(tensor);
  } else {
    return to_f64(tensor);
  }
}
template Tensor<float> typed(const std::string&, const AnyTensor&);
template Tensor<double> typed(const std::string&, const AnyTensor&);

const std::string& AttendOptions::file(const std::string& name) const {
  static const std::string none;
  if (name == "keep") return dense.keep;
  if (name == "drop") return dense.drop;
  for (const auto* files : {&read, &written}) {
    if (const auto found = files->find(name); found != files->end()) return found->second;
  }
  return none;
}

std::string AttendOptions::source(const std::string& name) const {
  const std::string& path = file(name);
  return path.empty() ? "--in " + escaped(in) + ", " + name : "--" + name + " " + escaped(path);
}

void require_known(const AttendOptions& options, const std::string& name) {
  if (std::ranges::find(kInputs, name, [](const char* known) { return std::string_view(known); }) == std::end(kInputs))
    throw UsageError("--in " + escaped(options.in) + ": tensors must be q, k, v, dout, bias, keep, drop: got " +
                     escaped(name) + ": rename it or take it out");
}

void add_attend_options(Options& add, AttendOptions& options) {
  const auto file = [&](const FileOption& one, std::map<std::string, std::string>& files) {
    add("--" + std::string(one.name) + " FILE", &files[one.name], one.help);
  };
  add.heading("Tensors in (.npy, or one .safetensors with the names q k v dout bias keep drop)");
  for (const FileOption& one : kRead) file(one, options.read);
  add("--in FILE", &options.in, "All of them in one .safetensors");

  add.heading("Tensors out (.npy, or one .safetensors)");
  add("--out FILE", &options.out, "Output [B, H, Tq, Dv], of q's type; required without --hash");
  add("--weights [FILE]", &options.weights, "Weights [B, H, Tq, Tk], before dropout");
  add("--applied [FILE]", &options.applied, "Weights after dropout");
  for (const FileOption& one : kWritten) file(one, options.written);
  add("--hash", &options.hash, "Print name, shape, type and sha256 of each output, written or not");
  add.footer(
      "\nThe same hashes on every CPU, gradients too:\n"
      "  qkv attend --q q.npy --k k.npy --v v.npy --dout g.npy --causal --bits invariant --hash");

  add.heading("Masks (every mask that is given must allow a key)");
  add("--causal{square}", &options.causal, "No key after the query; =top-left or =bottom-right when Tq != Tk");
  add("--window L,R[,ALIGN]", &options.window, "At most L keys before the query's own and R after; -1: no bound");
  add("--offsets N,N,...", &options.offsets,
      "Diagonal j = i + offset of --causal and --window, one offset per sequence");
  add("--key-lengths N,N,...", &options.key_lengths, "Number of keys of each sequence");
  add("--mask EXPR", &options.mask, "A mask expression, such as \"causal | prefix(3)\": see qkv mask --help");
  options.dense.add_to(add);

  add.heading("How");
  add("--scale X", &options.scale, "Factor on the scores (default 1/sqrt(D))", {.negative = true});
  add("--softcap X", &options.softcap, "c tanh(score / c); 0: off");
  add("--empty-row HOW", &options.empty_row, "A row without keys gives zero, mean or nan (default zero)");
  add("--dropout P", &options.dropout, "Dropout probability of the weights, as in training", {.most = 1});
  add("--seed N", &options.seed, "Seed of the dropout (default 0)", {.needs = "--dropout"});
  add.compute(options.compute);

  add_parallel_options(add, options.parallel, kSequenceMethods);
  add_cut_options(add, options.cut);
}

Mask structural_mask(const AttendOptions& options, Index batch, Index q_len, Index kv_len) {
  const auto one_each = [batch](std::string_view option, const std::string& text) {
    std::vector<Index> numbers = parse_indices(option, text);
    if (std::ssize(numbers) != batch)
      throw UsageError(
          fmt::format("{} takes a number for each of {} sequences: got {}", option, batch, numbers.size()));
    return numbers;
  };
  Mask mask;
  std::vector<Index> offsets;
  if (!options.offsets.empty()) {
    offsets = one_each("--offsets", options.offsets);
    if (options.causal.empty() && options.window.empty())
      throw UsageError("--offsets needs --causal or --window to act on");
  }
  if (!options.causal.empty()) {
    const Align align = parse_align("--causal", options.causal);
    if (!offsets.empty() && align != Align::kSquare)
      throw UsageError("--offsets replaces the alignment: give --causal alone");
    if (offsets.empty()) require_alignment("--causal", "=", align, q_len, kv_len);
    mask = mask & (offsets.empty() ? Mask::causal(align) : Mask::causal(offsets));
  }
  if (!options.window.empty()) {
    const Window window = parse_window(options.window);
    if (!offsets.empty() && window.align != Align::kSquare)
      throw UsageError("--offsets replaces the alignment: give --window L,R");
    if (offsets.empty()) require_alignment("--window L,R", ",", window.align, q_len, kv_len);
    mask = mask & about("--window", [&] {
      return offsets.empty() ? Mask::window(window.left, window.right, window.align)
                             : Mask::window(window.left, window.right, offsets);
    });
  }
  if (!options.key_lengths.empty()) {
    const std::vector<Index> lengths = one_each("--key-lengths", options.key_lengths);
    const auto wrong = std::ranges::find_if(lengths, [&](Index length) { return length < 0 || length > kv_len; });
    if (wrong != lengths.end())
      throw UsageError("--key-lengths must be from 0 to the " + std::to_string(kv_len) + " keys: got " +
                       std::to_string(*wrong) + " for sequence " + std::to_string(wrong - lengths.begin()));
    mask = mask & Mask::key_lengths(lengths);
  }
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
