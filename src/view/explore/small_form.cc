#include "view/explore/small_form.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/escape.h"

namespace qkv::inline v0::view {
namespace {

template <class Number> Number parse(const std::string& key, std::string_view text, Number largest, const char* what) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<OptionError>(error == std::errc() && end == text.data() + text.size() && value >= -largest && value <= largest,
      kOfHeads, "metadata ", escaped(key), " must ", what, ": got ", escaped(std::string(text)));
  return value;
}

double parse_number(const std::string& key, const std::string& text) {
  return parse(key, text, std::numeric_limits<double>::max(), "be a finite number");
}

Index parse_integer(const std::string& key, std::string_view text) {
  return parse(
      key, text, Index{1} << 40, "hold integers of at most 1099511627776");  // sums of positions do not overflow
}

void read_metadata(const StateDict& heads, SmallForm& f) {
  f.scale = 1 / std::sqrt(static_cast<double>(f.head_dim()));
  f.offset = f.kv_len() - f.q_len();
  for (const auto& [key, text] : heads.metadata) {
    if (key == "scale") {
      f.scale = parse_number(key, text);
    } else if (key == "softcap") {
      f.softcap = parse_number(key, text);
    } else if (key == "causal") {
      check<OptionError>(text == "true" || text == "false", kOfHeads, "metadata \"causal\" must be true or false: got ",
          escaped(text));
      f.causal = text == "true";
    } else if (key == "window") {
      const std::size_t comma = text.find(',');
      check<OptionError>(
          comma != std::string::npos, kOfHeads, "metadata \"window\" must be LEFT,RIGHT: got ", escaped(text));
      f.window = {parse_integer(key, std::string_view(text).substr(0, comma)),
          parse_integer(key, std::string_view(text).substr(comma + 1))};
      check<OptionError>(f.window->first >= -1 && f.window->second >= -1, kOfHeads,
          "metadata \"window\" must hold numbers from -1 (no limit) on: got ", escaped(text));
    } else if (key == "offset") {
      f.offset = parse_integer(key, text);
    } else if (key == "title") {
      f.title = text;
    } else if (key == "name") {
      f.name = text;
    } else {
      check<OptionError>(key == "format", kOfHeads,
          "metadata must be of scale, softcap, causal, window, offset, title, name: got ", escaped(key));
      fail<OptionError>(kOfHeads, "metadata \"format\" belongs to the full form: got ", escaped(text));
    }
  }
}

const AnyTensor& needed(const StateDict& heads, const char* name) {
  const AnyTensor* tensor = heads.find(name);
  check<OptionError>(tensor != nullptr, kOfHeads, "the file must hold a tensor ", name);
  check<ShapeError>(tensor->sizes.size() == 3, kOfHeads, name, " must have 3 axes: got ", tensor->shape());
  check<OptionError>(tensor->dtype == DType::kF32 || tensor->dtype == DType::kF16 || tensor->dtype == DType::kBF16,
      kOfHeads, name, " must be F32, F16 or BF16: got ", dtype_name(tensor->dtype));
  return *tensor;
}

/// An optional tensor as float; empty where it is missing. sizes: -1 is any.
Tensor<float> optional_f32(const StateDict& heads, const char* name, const std::vector<Index>& sizes) {
  const AnyTensor* tensor = heads.find(name);
  if (tensor == nullptr) return {};
  bool fits = tensor->sizes.size() == sizes.size();
  for (std::size_t a = 0; fits && a < sizes.size(); ++a) fits = sizes[a] < 0 || sizes[a] == tensor->sizes[a];
  check<ShapeError>(fits, kOfHeads, name, " must be ", shape_text(sizes.data(), static_cast<int>(sizes.size())),
      ": got ", tensor->shape());
  check<OptionError>(tensor->dtype == DType::kF32, kOfHeads, name, " must be F32: got ", dtype_name(tensor->dtype));
  return to_f32(*tensor);
}

}  // namespace

SmallForm read_small_form(const StateDict& heads) {
  constexpr std::string_view kTensors[] = {"q", "k", "lse", "sinks", "alibi", "relative"};
  for (const StateDict::Entry& entry : heads.entries()) {
    check<OptionError>(std::ranges::find(kTensors, entry.name) != std::end(kTensors), kOfHeads,
        "tensors must be q, k, lse, sinks, alibi, relative: got ", escaped(entry.name));
  }
  SmallForm f;
  f.q = &needed(heads, "q");
  f.k = &needed(heads, "k");
  check<ShapeError>(f.num_heads() > 0 && f.num_kv_heads() > 0 && f.num_heads() % f.num_kv_heads() == 0, kOfHeads,
      "heads of q must be a multiple of those of k: q ", *f.q, ", k ", *f.k);
  check<ShapeError>(f.k->sizes[2] == f.head_dim() && f.head_dim() > 0, kOfHeads, "q and k must have one width: q ",
      *f.q, ", k ", *f.k);
  check<ShapeError>(
      f.q_len() > 0 && f.kv_len() > 0, kOfHeads, "there must be queries and keys: q ", *f.q, ", k ", *f.k);
  read_metadata(heads, f);
  f.lse = optional_f32(heads, "lse", {f.num_heads(), f.q_len()});
  f.sinks = optional_f32(heads, "sinks", {f.num_heads()});
  f.alibi = optional_f32(heads, "alibi", {f.num_heads()});
  f.relative = optional_f32(heads, "relative", {f.num_heads(), -1});
  return f;
}

}  // namespace qkv::inline v0::view
