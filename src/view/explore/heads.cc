// From q and k of some heads to the file of the explorer: one call of forward with a capture. Not: the page (explorer.cc).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/check.h"
#include "core/escape.h"
#include "qkv/attention.h"
#include "qkv/view/explorer.h"
#include "view/explore/json.h"

namespace qkv::inline v0::view {
namespace {

constexpr const char* kFunction = "explorer_of_heads";
constexpr Index kMapSize = 128, kBins = 1024;
// An lse that another program summed in its own order differs by roundings; one of another scale, cap or mask by far more.
constexpr double kLseRoom = 0.02;

double parse_number(const std::string& key, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<OptionError>(error == std::errc() && end == text.data() + text.size() && std::isfinite(value), kFunction, "metadata ",
                     escaped(key), " must be a finite number: got ", escaped(text));
  return value;
}

Index parse_integer(const std::string& key, std::string_view text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<OptionError>(error == std::errc() && end == text.data() + text.size(), kFunction, "metadata ", escaped(key),
                     " must hold integers: got ", escaped(std::string(text)));
  return value;
}

/// The metadata of the small form.
struct Formula {
  double scale = 0, softcap = 0;
  bool causal = false;
  std::optional<std::pair<Index, Index>> window;  // -1: no limit
  Index offset = 0;
  std::string title, name;
};

Formula formula_of(const StateDict& heads, Index head_dim, Index q_len, Index kv_len) {
  Formula f;
  f.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  f.offset = kv_len - q_len;
  for (const auto& [key, text] : heads.metadata) {
    if (key == "scale") {
      f.scale = parse_number(key, text);
    } else if (key == "softcap") {
      f.softcap = parse_number(key, text);
    } else if (key == "causal") {
      check<OptionError>(text == "true" || text == "false", kFunction, "metadata \"causal\" must be true or false: got ",
                         escaped(text));
      f.causal = text == "true";
    } else if (key == "window") {
      const std::size_t comma = text.find(',');
      check<OptionError>(comma != std::string::npos, kFunction, "metadata \"window\" must be LEFT,RIGHT: got ", escaped(text));
      f.window = {parse_integer(key, std::string_view(text).substr(0, comma)),
                  parse_integer(key, std::string_view(text).substr(comma + 1))};
      check<OptionError>(f.window->first >= -1 && f.window->second >= -1, kFunction,
                         "metadata \"window\" must hold numbers from -1 (no limit) on: got ", escaped(text));
    } else if (key == "offset") {
      f.offset = parse_integer(key, text);
    } else if (key == "title") {
      f.title = text;
    } else if (key == "name") {
      f.name = text;
    } else {
      check<OptionError>(key == "format", kFunction,
                         "metadata must be of scale, softcap, causal, window, offset, title, name: got ", escaped(key));
      fail<OptionError>(kFunction, "metadata \"format\" belongs to the full form: got ", escaped(text));
    }
  }
  return f;
}

const AnyTensor& needed(const StateDict& heads, const char* name) {
  const AnyTensor* tensor = heads.find(name);
  check<OptionError>(tensor != nullptr, kFunction, "the file must hold a tensor ", name);
  check<ShapeError>(tensor->sizes.size() == 3, kFunction, name, " must have 3 axes: got ", tensor->shape());
  check<OptionError>(tensor->dtype == DType::kF32 || tensor->dtype == DType::kF16 || tensor->dtype == DType::kBF16, kFunction,
                     name, " must be F32, F16 or BF16: got ", dtype_name(tensor->dtype));
  return *tensor;
}

/// An optional tensor as float; empty where it is missing. sizes: -1 is any.
Tensor<float> optional_f32(const StateDict& heads, const char* name, const std::vector<Index>& sizes) {
  const AnyTensor* tensor = heads.find(name);
  if (tensor == nullptr) return {};
  bool fits = tensor->sizes.size() == sizes.size();
  for (std::size_t a = 0; fits && a < sizes.size(); ++a) fits = sizes[a] < 0 || sizes[a] == tensor->sizes[a];
  check<ShapeError>(fits, kFunction, name, " must be ", shape_text(sizes.data(), static_cast<int>(sizes.size())), ": got ",
                    tensor->shape());
  check<OptionError>(tensor->dtype == DType::kF32, kFunction, name, " must be F32: got ", dtype_name(tensor->dtype));
  return to_f32(*tensor);
}

Tensor<float> transposed(const Tensor<float>& table) {  // [H, R] -> [R, H]
  Tensor<float> out({table.size(1), table.size(0)});
  for (Index h = 0; h < table.size(0); ++h)
    for (Index r = 0; r < table.size(1); ++r) out.data()[r * table.size(0) + h] = table.data()[h * table.size(1) + r];
  return out;
}

/// [1, H, n] -> [H, bins]: the mean over `per_bin == false` its numbers, or their sum divided by `whole`.
Tensor<float> binned(const Tensor<double>& rows, Index bins, std::optional<double> whole = {}) {
  const Index num_heads = rows.size(1), count = rows.size(2);
  Tensor<float> out({num_heads, bins});
  std::vector<double> sum(static_cast<std::size_t>(bins)), of(static_cast<std::size_t>(bins));
  for (Index h = 0; h < num_heads; ++h) {
    std::ranges::fill(sum, 0);
    std::ranges::fill(of, 0);
    for (Index i = 0; i < count; ++i) {
      const auto bin = static_cast<std::size_t>(i * bins / count);
      sum[bin] += rows.data()[h * count + i];
      ++of[bin];
    }
    for (Index bin = 0; bin < bins; ++bin) {
      const auto b = static_cast<std::size_t>(bin);
      out.data()[h * bins + bin] = static_cast<float>(sum[b] / (whole ? *whole : of[b]));
    }
  }
  return out;
}

/// Sums over blocks -> means over the rows of a block.
Tensor<float> shares(const Tensor<double>& map, Index q_len) {  // [1, H, R, C] -> [H, R, C]
  const Index rows = map.size(2), columns = map.size(3);
  Tensor<float> out({map.size(1), rows, columns});
  std::vector<double> of(static_cast<std::size_t>(rows));
  for (Index i = 0; i < q_len; ++i) ++of[static_cast<std::size_t>(i * rows / q_len)];
  for (Index n = 0; n < map.count(); ++n)
    out.data()[n] = static_cast<float>(map.data()[n] / of[static_cast<std::size_t>(n / columns % rows)]);
  return out;
}

constexpr std::pair<const char*, Tensor<double> RowStatistics::*> kStatistics[] = {
    {"entropy", &RowStatistics::entropy},   {"largest", &RowStatistics::max_weight}, {"self", &RowStatistics::self},
    {"previous", &RowStatistics::previous}, {"first", &RowStatistics::first},        {"distance", &RowStatistics::distance},
    {"sink", &RowStatistics::sink}};

std::string head_info(const RowStatistics& statistics, Index num_heads) {
  std::string out = "[";
  for (Index h = 0; h < num_heads; ++h) {
    std::string one;
    for (const auto& [name, member] : kStatistics) {
      const Tensor<double>& all = statistics.*member;
      if (all.count() == 0) continue;
      double sum = 0;
      const Index count = all.size(2);
      for (Index i = 0; i < count; ++i) sum += all.data()[h * count + i];
      one += (one.empty() ? "" : ",") + quote_json(name) + ":" + json_number(sum / static_cast<double>(count));
    }
    out += (h > 0 ? ",{" : "{") + one + "}";
  }
  return out + "]";
}

std::string numbers_below(Index count) {
  std::string out = "[";
  for (Index i = 0; i < count; ++i) out += (i > 0 ? "," : "") + std::to_string(i);
  return out + "]";
}

std::string text_object(const std::string& name, const std::vector<std::string>& tokens, Index length) {
  std::string list;
  for (const std::string& token : tokens) list += (list.empty() ? "[" : ",") + quote_json(token);
  return "{\"name\":" + quote_json(name) + ",\"tokens\":" + (tokens.empty() ? "null" : list + "]") +
         ",\"length\":" + std::to_string(length) + "}";
}

std::string formula_json(const Formula& f) {
  const auto side = [](Index n) { return n < 0 ? std::string("null") : std::to_string(n); };
  std::string out = "{\"scale\":" + json_number(f.scale) + ",\"softcap\":" + json_number(f.softcap) +
                    ",\"offset\":" + std::to_string(f.offset) + ",\"causal\":" + (f.causal ? "true" : "false");
  if (f.window) out += ",\"window\":[" + side(f.window->first) + "," + side(f.window->second) + "]";
  return out + "}";
}

/// The largest |given - computed|, which is the largest relative error of a weight.
double check_lse(const Tensor<float>& given, const Tensor<float>& computed, Index q_len) {
  double largest = 0;
  for (Index n = 0; n < given.count(); ++n) {
    const double a = static_cast<double>(given.data()[n]), b = static_cast<double>(computed.data()[n]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    check<OptionError>(std::abs(a - b) <= kLseRoom, kFunction, "lse must follow from q, k and the metadata: head ", n / q_len,
                       ", query ", n % q_len, ": computed ", b, ", got ", a,
                       " (is scale, softcap, causal, window or a bias missing?)");
    largest = std::max(largest, std::abs(a - b));
  }
  return largest;
}

}  // namespace

StateDict explorer_of_heads(const StateDict& heads, const std::vector<std::string>& query_tokens,
                            const std::vector<std::string>& key_tokens, Context& context) {
  constexpr std::string_view kNames[] = {"q", "k", "lse", "sinks", "alibi", "relative"};
  for (const StateDict::Entry& entry : heads.entries()) {
    check<OptionError>(std::ranges::find(kNames, entry.name) != std::end(kNames), kFunction,
                       "tensors must be q, k, lse, sinks, alibi, relative: got ", escaped(entry.name));
  }
  const AnyTensor &q_in = needed(heads, "q"), &k_in = needed(heads, "k");
  const Index num_heads = q_in.sizes[0], q_len = q_in.sizes[1], head_dim = q_in.sizes[2];
  const Index num_kv_heads = k_in.sizes[0], kv_len = k_in.sizes[1];
  check<ShapeError>(num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0, kFunction,
                    "heads of q must be a multiple of those of k: q ", q_in.shape(), ", k ", k_in.shape());
  check<ShapeError>(k_in.sizes[2] == head_dim && head_dim > 0, kFunction, "q and k must have one width: q ", q_in.shape(),
                    ", k ", k_in.shape());
  check<ShapeError>(q_len > 0 && kv_len > 0, kFunction, "there must be queries and keys: q ", q_in.shape(), ", k ",
                    k_in.shape());
  const auto check_tokens = [](const char* name, const std::vector<std::string>& tokens, Index wanted) {
    check<ShapeError>(tokens.empty() || static_cast<Index>(tokens.size()) == wanted, kFunction, name,
                      " must be one for each of ", wanted, " positions: got ", tokens.size());
  };
  check_tokens("tokens of queries", query_tokens, q_len);
  check_tokens("tokens of keys", key_tokens, kv_len);
  const Formula f = formula_of(heads, head_dim, q_len, kv_len);

  AttentionOptions options{.scale = f.scale, .softcap = f.softcap};
  const std::vector<Index> offsets{f.offset};
  if (f.causal) options.mask = options.mask & Mask::causal(offsets);
  if (f.window) options.mask = options.mask & Mask::window(f.window->first, f.window->second, offsets);
  const Tensor<float> sinks = optional_f32(heads, "sinks", {num_heads}), alibi = optional_f32(heads, "alibi", {num_heads});
  const Tensor<float> relative = optional_f32(heads, "relative", {num_heads, -1});
  const Tensor<float> table = relative.rank() > 0 ? transposed(relative) : Tensor<float>();
  if (sinks.rank() > 0) options.sinks = sinks;
  if (alibi.rank() > 0 || relative.rank() > 0) {
    check<UnsupportedError>(alibi.rank() == 0 || relative.rank() == 0, kFunction, "only one of alibi and relative is computed");
    check<UnsupportedError>(f.offset == 0 || f.offset == kv_len - q_len, kFunction,
                            "a bias by position needs an offset of 0 or Tk - Tq, ", kv_len - q_len, ": got ", f.offset);
    const Align align = f.offset == 0 ? Align::kTopLeft : Align::kBottomRight;
    options.position_bias = alibi.rank() > 0 ? PositionBias::alibi({alibi.span().begin(), alibi.span().end()}, align)
                                             : PositionBias::relative(table.view<2>(), align);
  }

  const Tensor<float> q = to_f32(q_in), k = to_f32(k_in);
  const Tensor<float> v({1, num_kv_heads, kv_len, 1});
  Tensor<float> out({1, num_heads, q_len, 1}), lse({1, num_heads, q_len});
  const Capture look{.statistics = true,
                     .column_mass = true,
                     .map_rows = std::min(kMapSize, q_len),
                     .map_columns = std::min(kMapSize, kv_len),
                     .offsets = offsets};
  CaptureResult seen;
  options.capture = {look, seen};
  attention_forward(View<const float, 4>(q.data(), {1, num_heads, q_len, head_dim}),
                    View<const float, 4>(k.data(), {1, num_kv_heads, kv_len, head_dim}), v, {.out = out, .lse = lse}, options,
                    context);
  const Tensor<float> given = optional_f32(heads, "lse", {num_heads, q_len});
  const std::string errors = given.rank() > 0 ? "\"exact\":" + json_number(check_lse(given, lse, q_len)) : std::string();

  StateDict file;
  const auto add = [&file](const std::string& name, const Tensor<float>& tensor) {
    file.add("0/0/" + name, any_tensor(tensor));
  };
  add("map", shares(seen.map, q_len));
  add("mass", binned(seen.column_mass, std::min(kBins, kv_len), static_cast<double>(q_len)));
  for (const auto& [name, member] : kStatistics) {
    const Tensor<double>& rows = seen.statistics.*member;
    if (rows.count() > 0) add(std::string("rows/") + name, binned(rows, std::min(kBins, q_len)));
  }
  file.add("0/0/q", q_in.clone());
  file.add("0/0/k", k_in.clone());
  lse.reshape({num_heads, q_len});
  add("lse", given.rank() > 0 ? given : lse);
  if (sinks.rank() > 0) add("sinks", sinks);
  if (alibi.rank() > 0) add("alibi", alibi);
  if (relative.rank() > 0) add("relative", relative);

  const bool one_text = q_len == kv_len && query_tokens == key_tokens;
  const std::string title = f.title.empty() ? "attention" : f.title, name = f.name.empty() ? "attention" : f.name;
  const auto count = [](Index n) { return std::to_string(n); };
  file.metadata["format"] = "qkv.explorer.1";
  file.metadata["title"] = title;
  file.metadata["explorer"] =
      "{\"title\":" + quote_json(title) + ",\"texts\":[" + text_object(one_text ? "text" : "keys", key_tokens, kv_len) +
      (one_text ? "" : "," + text_object("queries", query_tokens, q_len)) + "],\"views\":[{\"name\":" + quote_json(name) +
      ",\"kind\":" + (one_text ? "\"self\"" : "\"cross\"") + ",\"queries\":" + (one_text ? "0" : "1") +
      ",\"keys\":0,\"layers\":[{\"name\":" + quote_json(name) + ",\"heads\":" + count(num_heads) +
      ",\"kv_heads\":" + count(num_kv_heads) + ",\"q_len\":" + count(q_len) + ",\"kv_len\":" + count(kv_len) +
      ",\"formula\":" + formula_json(f) + ",\"exact\":" + numbers_below(num_heads) +
      ",\"exact_kv\":" + numbers_below(num_kv_heads) + ",\"head_info\":" + head_info(seen.statistics, num_heads) +
      ",\"errors\":{" + errors + "}}]}]}";
  return file;
}

}  // namespace qkv::inline v0::view
