// From q and k of some heads to the file of the explorer: one call of forward with a capture. Not: what the small form
// may hold (small_form.h), the page (explorer.cc).
#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "core/check.h"
#include "qkv/attention.h"
#include "qkv/view/explorer.h"
#include "qkv/view/kinds.h"
#include "view/explore/json.h"
#include "view/explore/small_form.h"

namespace qkv::inline v0::view {
namespace {

constexpr Index kMapSize = 128, kBins = 1024;
// An lse that another program summed in its own order differs by roundings; one of another scale, cap or mask by far
// more.
constexpr double kLseRoom = 0.02;

Tensor<float> transposed(const Tensor<float>& table) {  // [H, R] -> [R, H]
  Tensor<float> out({table.size(1), table.size(0)});
  for (Index h = 0; h < table.size(0); ++h)
    for (Index r = 0; r < table.size(1); ++r) out.data()[r * table.size(0) + h] = table.data()[h * table.size(1) + r];
  return out;
}

/// [1, H, n] -> [H, bins]: the mean of the numbers of a bin, or their sum divided by `whole`.
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

constexpr std::pair<const char*, Tensor<double> RowStatistics::*> kStatistics[] = {{"entropy", &RowStatistics::entropy},
    {"largest", &RowStatistics::max_weight}, {"self", &RowStatistics::self}, {"previous", &RowStatistics::previous},
    {"first", &RowStatistics::first}, {"distance", &RowStatistics::distance}, {"sink", &RowStatistics::sink}};

std::string head_info(const RowStatistics& statistics, const std::vector<HeadKind>& kinds) {
  constexpr std::string_view kMeans[] = {"entropy", "largest", "distance", "sink"};
  std::string out = "[";
  for (Index h = 0; h < static_cast<Index>(kinds.size()); ++h) {
    const HeadKind& kind = kinds[static_cast<std::size_t>(h)];
    std::string one = "\"kind\":" + quote_json(kind.kind) + ",\"first\":" + json_number(kind.first);
    if (kind.share) one += ",\"share\":" + json_number(*kind.share);
    for (const auto& [name, share] : kind.shares)
      one += "," + quote_json(std::string(name) + " share") + ":" + json_number(share);
    for (const auto& [name, member] : kStatistics) {
      const Tensor<double>& all = statistics.*member;
      if (all.count() == 0 || std::ranges::find(kMeans, name) == std::end(kMeans)) continue;
      double sum = 0;
      const Index count = all.size(2);
      for (Index i = 0; i < count; ++i) sum += all.data()[h * count + i];
      one += "," + quote_json(name) + ":" + json_number(sum / static_cast<double>(count));
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

std::string formula_json(const SmallForm& f) {
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
    check<OptionError>(std::abs(a - b) <= kLseRoom, kOfHeads, "lse must follow from q, k and the metadata: head ",
        n / q_len, ", query ", n % q_len, ": computed ", b, ", got ", a,
        " (is scale, softcap, causal, window or a bias missing?)");
    largest = std::max(largest, std::abs(a - b));
  }
  return largest;
}

/// What forward saw and computed.
struct Seen {
  CaptureResult capture;
  Tensor<float> lse;   // [1, H, Tq]
  Tensor<float> q, k;  // as the file's, in f32
};

Mask mask_of(const SmallForm& f) {
  const std::vector<Index> offsets{f.offset};
  Mask mask;
  if (f.causal) mask = mask & Mask::causal(offsets);
  if (f.window) mask = mask & Mask::window(f.window->first, f.window->second, offsets);
  return mask;
}

Seen look_at(const SmallForm& f, Context& context) {
  AttentionOptions options{.mask = mask_of(f), .scale = f.scale, .softcap = f.softcap};
  const std::vector<Index> offsets{f.offset};
  if (f.sinks.rank() > 0) options.sinks = f.sinks;
  const Tensor<float> table = f.relative.rank() > 0 ? transposed(f.relative) : Tensor<float>();
  if (f.alibi.rank() > 0 || f.relative.rank() > 0) {
    const Index aligned = f.kv_len() - f.q_len();
    check<UnsupportedError>(
        f.alibi.rank() == 0 || f.relative.rank() == 0, kOfHeads, "only one of alibi and relative is computed");
    check<UnsupportedError>(f.offset == 0 || f.offset == aligned, kOfHeads,
        "a bias by position needs an offset of 0 or Tk - Tq, ", aligned, ": got ", f.offset);
    const Align align = f.offset == 0 ? Align::kTopLeft : Align::kBottomRight;
    options.position_bias = f.alibi.rank() > 0
                                ? PositionBias::alibi({f.alibi.span().begin(), f.alibi.span().end()}, align)
                                : PositionBias::relative(table.view<2>(), align);
  }
  const Capture look{.statistics = true,
      .column_mass = true,
      .map_rows = std::min(kMapSize, f.q_len()),
      .map_columns = std::min(kMapSize, f.kv_len()),
      .offsets = offsets};
  Seen seen{{}, Tensor<float>({1, f.num_heads(), f.q_len()}), to_f32(*f.q), to_f32(*f.k)};
  options.capture = {look, seen.capture};
  const Tensor<float>&q = seen.q, &k = seen.k, v({1, f.num_kv_heads(), f.kv_len(), 1});
  Tensor<float> out({1, f.num_heads(), f.q_len(), 1});  // lse comes with out: values of width 1 cost least
  attention_forward(View<const float, 4>(q.data(), {1, f.num_heads(), f.q_len(), f.head_dim()}),
      View<const float, 4>(k.data(), {1, f.num_kv_heads(), f.kv_len(), f.head_dim()}), v, {.out = out, .lse = seen.lse},
      options, context);
  return seen;
}

/// The bias that a table gives positions; empty: none.
std::function<double(Index, Index, Index)> bias_of(const SmallForm& f) {
  if (f.alibi.rank() > 0) {
    return [&f](Index h, Index i, Index j) {
      return -static_cast<double>(f.alibi.data()[h]) * std::abs(static_cast<double>(j - i - f.offset));
    };
  }
  if (f.relative.rank() == 0) return {};
  return [&f](Index h, Index i, Index j) {
    const Index reach = f.relative.size(1) / 2;
    return static_cast<double>(
        f.relative.data()[h * f.relative.size(1) + reach + std::clamp(j - i - f.offset, -reach, reach)]);
  };
}

/// tokens: of the keys, among which the queries' are; empty: not known.
std::vector<HeadKind> kinds_of(
    const SmallForm& f, const Seen& seen, bool same_text, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string, Index> numbers;
  std::vector<Index> ids;
  for (const std::string& token : tokens)
    ids.push_back(numbers.try_emplace(token, static_cast<Index>(ids.size())).first->second);
  const Index num_heads = f.num_heads(), q_len = f.q_len();
  Tensor<double> lse({num_heads, q_len});
  std::copy_n(seen.lse.data(), lse.count(), lse.data());
  const RowStatistics& found = seen.capture.statistics;
  const auto rows = [&](const Tensor<double>& all) {
    return all.count() > 0 ? View<const double, 2>(all.data(), {num_heads, q_len}) : View<const double, 2>();
  };
  const HeadCall call{.q = View<const float, 3>(seen.q.data(), {num_heads, q_len, f.head_dim()}),
      .k = View<const float, 3>(seen.k.data(), {f.num_kv_heads(), f.kv_len(), f.head_dim()}),
      .lse = lse,
      .entropy = rows(found.entropy),
      .sink = rows(found.sink),
      .scale = f.scale,
      .softcap = f.softcap,
      .bias = bias_of(f),
      .mask = mask_of(f),
      .offset = f.offset,
      .same_text = same_text,
      .ids = std::move(ids)};
  return kinds_of_heads({&call, 1});
}

/// The JSON of the full form.
std::string describe(const SmallForm& f, const Seen& seen, const std::string& errors,
    const std::vector<std::string>& query_tokens, const std::vector<std::string>& key_tokens) {
  const bool one_text = f.q_len() == f.kv_len() && query_tokens == key_tokens;
  const auto count = [](Index n) { return std::to_string(n); };
  return "{\"title\":" + quote_json(f.title) + ",\"texts\":[" +
         text_json(one_text ? "text" : "keys", key_tokens, f.kv_len()) +
         (one_text ? "" : "," + text_json("queries", query_tokens, f.q_len())) +
         "],\"views\":[{\"name\":" + quote_json(f.name) + ",\"kind\":" + (one_text ? "\"self\"" : "\"cross\"") +
         ",\"queries\":" + (one_text ? "0" : "1") + ",\"keys\":0,\"layers\":[{\"name\":" + quote_json(f.name) +
         ",\"heads\":" + count(f.num_heads()) + ",\"kv_heads\":" + count(f.num_kv_heads()) +
         ",\"q_len\":" + count(f.q_len()) + ",\"kv_len\":" + count(f.kv_len()) + ",\"formula\":" + formula_json(f) +
         ",\"exact\":" + numbers_below(f.num_heads()) + ",\"exact_kv\":" + numbers_below(f.num_kv_heads()) +
         ",\"head_info\":" + head_info(seen.capture.statistics, kinds_of(f, seen, one_text || f.causal, key_tokens)) +
         ",\"errors\":{" + errors + "}}]}]}";
}

void check_tokens(const char* name, const std::vector<std::string>& tokens, Index wanted) {
  check<ShapeError>(tokens.empty() || static_cast<Index>(tokens.size()) == wanted, kOfHeads, name,
      " must be one for each of ", wanted, " positions: got ", tokens.size());
}

}  // namespace

StateDict explorer_of_heads(const StateDict& heads, const std::vector<std::string>& query_tokens,
    const std::vector<std::string>& key_tokens, Context& context) {
  const SmallForm f = read_small_form(heads);
  check_tokens("tokens of queries", query_tokens, f.q_len());
  check_tokens("tokens of keys", key_tokens, f.kv_len());
  Seen seen = look_at(f, context);
  const bool is_given = f.lse.rank() > 0;
  const std::string errors =
      is_given ? "\"exact\":" + json_number(check_lse(f.lse, seen.lse, f.q_len())) : std::string();
  seen.lse.reshape({f.num_heads(), f.q_len()});

  StateDict file;
  const auto add = [&file](const std::string& name, const Tensor<float>& tensor) {
    if (tensor.rank() > 0) file.add("0/0/" + name, any_tensor(tensor));
  };
  add("map", shares(seen.capture.map, f.q_len()));
  add("mass", binned(seen.capture.column_mass, std::min(kBins, f.kv_len()), static_cast<double>(f.q_len())));
  for (const auto& [name, member] : kStatistics) {
    const Tensor<double>& rows = seen.capture.statistics.*member;
    if (rows.count() > 0) add(std::string("rows/") + name, binned(rows, std::min(kBins, f.q_len())));
  }
  file.add("0/0/q", f.q->clone());
  file.add("0/0/k", f.k->clone());
  add("lse", is_given ? f.lse : seen.lse);
  add("sinks", f.sinks);
  add("alibi", f.alibi);
  add("relative", f.relative);
  file.metadata["format"] = "qkv.explorer.1";
  file.metadata["title"] = f.title;
  file.metadata["explorer"] = describe(f, seen, errors, query_tokens, key_tokens);
  return file;
}

}  // namespace qkv::inline v0::view
