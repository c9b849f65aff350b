// From q and k of some heads to the file of the explorer: one call of forward with a capture.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "core/check.h"
#include "qkv/attention.h"
#include "qkv/view/explorer.h"
#include "qkv/view/kinds.h"
#include "view/explore/describe.h"
#include "view/explore/small_form.h"

namespace qkv::inline v0::view {
namespace {

constexpr Index kMapSize = 128, kBins = 1024;
// An lse that another program summed in its own order differs by roundings; one of another scale, cap or mask by far
// more.
constexpr double kLseRoom = 0.02;

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

/// The mean over the queries of each row statistic that is a number per head.
Json head_info(const RowStatistics& statistics, const std::vector<HeadKind>& kinds) {
  Json out = Json::array();
  for (Index h = 0; h < static_cast<Index>(kinds.size()); ++h) {
    const HeadKind& kind = kinds[static_cast<std::size_t>(h)];
    Json one{{"kind", kind.kind}, {"first", kind.first}};
    if (kind.share) one["share"] = *kind.share;
    for (const auto& [name, share] : kind.shares) one[std::string(name) + " share"] = share;
    for (const auto& [name, member] :
        {std::pair("entropy", &RowStatistics::entropy), {"largest", &RowStatistics::max_weight},
            {"distance", &RowStatistics::distance}, {"sink", &RowStatistics::sink}}) {
      const Tensor<double>& all = statistics.*member;
      if (all.count() == 0) continue;
      const auto rows =
          all.span().subspan(static_cast<std::size_t>(h * all.size(2)), static_cast<std::size_t>(all.size(2)));
      one[name] = std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(all.size(2));
    }
    out.push_back(std::move(one));
  }
  return out;
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

struct Captured {
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

Captured captured_forward(const SmallForm& f, Context& context) {
  AttentionOptions options{.mask = mask_of(f), .scale = f.scale, .softcap = f.softcap};
  const std::vector<Index> offsets{f.offset};
  if (f.sinks.rank() > 0) options.sinks = f.sinks;
  if (f.alibi.rank() > 0 || f.relative.rank() > 0) {
    const Index aligned = f.kv_len() - f.q_len();
    check<UnsupportedError>(
        f.alibi.rank() == 0 || f.relative.rank() == 0, kOfHeads, "only one of alibi and relative is computed");
    check<UnsupportedError>(f.offset == 0 || f.offset == aligned, kOfHeads,
        "a bias by position needs an offset of 0 or Tk - Tq, ", aligned, ": got ", f.offset);
    const Align align = f.offset == 0 ? Align::kTopLeft : Align::kBottomRight;
    const Index reach = f.relative.rank() > 0 ? f.relative.size(1) : 0;
    const View<const float, 2> table(f.relative.data(), {reach, f.num_heads()}, {1, reach});  // [2 R + 1, H]
    options.position_bias = f.alibi.rank() > 0
                                ? PositionBias::alibi({f.alibi.span().begin(), f.alibi.span().end()}, align)
                                : PositionBias::relative(table, align);
  }
  const Capture wanted{.statistics = true,
      .column_mass = true,
      .map_rows = std::min(kMapSize, f.q_len()),
      .map_columns = std::min(kMapSize, f.kv_len()),
      .offsets = offsets};
  Captured captured{{}, Tensor<float>({1, f.num_heads(), f.q_len()}), to_f32(*f.q), to_f32(*f.k)};
  options.capture = {wanted, captured.capture};
  const Tensor<float>&q = captured.q, &k = captured.k, v({1, f.num_kv_heads(), f.kv_len(), 1});
  Tensor<float> out({1, f.num_heads(), f.q_len(), 1});  // lse comes with out: values of width 1 cost least
  attention_forward(View<const float, 4>(q.data(), {1, f.num_heads(), f.q_len(), f.head_dim()}),
      View<const float, 4>(k.data(), {1, f.num_kv_heads(), f.kv_len(), f.head_dim()}), v,
      {.out = out, .lse = captured.lse}, options, context);
  return captured;
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
    const SmallForm& f, const Captured& captured, bool same_text, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string, Index> numbers;
  std::vector<Index> ids;
  for (const std::string& token : tokens)
    ids.push_back(numbers.try_emplace(token, static_cast<Index>(ids.size())).first->second);
  const Index num_heads = f.num_heads(), q_len = f.q_len();
  Tensor<double> lse({num_heads, q_len});
  std::copy_n(captured.lse.data(), lse.count(), lse.data());
  const RowStatistics& found = captured.capture.statistics;
  const auto rows = [&](const Tensor<double>& all) {
    return all.count() > 0 ? View<const double, 2>(all.data(), {num_heads, q_len}) : View<const double, 2>();
  };
  const HeadCall call{.q = View<const float, 3>(captured.q.data(), {num_heads, q_len, f.head_dim()}),
      .k = View<const float, 3>(captured.k.data(), {f.num_kv_heads(), f.kv_len(), f.head_dim()}),
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
  Captured captured = captured_forward(f, context);
  const bool is_given = f.lse.rank() > 0;
  const bool one_text = is_one_text(f.q_len(), f.kv_len(), query_tokens, key_tokens);
  std::vector<Index> exact(static_cast<std::size_t>(f.num_heads())),
      exact_kv(static_cast<std::size_t>(f.num_kv_heads()));
  std::iota(exact.begin(), exact.end(), 0);
  std::iota(exact_kv.begin(), exact_kv.end(), 0);
  Json layer{{"name", f.name}, {"heads", f.num_heads()}, {"kv_heads", f.num_kv_heads()},
      {"formula", {{"scale", f.scale}, {"softcap", f.softcap}, {"offset", f.offset}}}, {"exact", exact},
      {"exact_kv", exact_kv},
      {"head_info", head_info(captured.capture.statistics, kinds_of(f, captured, one_text || f.causal, key_tokens))}};
  if (is_given) layer["errors"] = {{"exact", check_lse(f.lse, captured.lse, f.q_len())}};
  captured.lse.reshape({f.num_heads(), f.q_len()});

  StateDict file;
  const auto add = [&file](const std::string& name, const Tensor<float>& tensor) {
    if (tensor.rank() > 0) file.add("0/0/" + name, any_tensor(tensor));
  };
  add("map", shares(captured.capture.map, f.q_len()));
  add("mass", binned(captured.capture.column_mass, std::min(kBins, f.kv_len()), static_cast<double>(f.q_len())));
  for (const auto& [name, member] : kStatistics) {
    const Tensor<double>& rows = captured.capture.statistics.*member;
    if (rows.count() > 0) add(std::string("rows/") + name, binned(rows, std::min(kBins, f.q_len())));
  }
  file.add("0/0/q", f.q->clone());
  file.add("0/0/k", f.k->clone());
  add("lse", is_given ? f.lse : captured.lse);
  if (f.causal || f.window)
    add("intervals", key_intervals(mask_of(f), {1, f.num_heads(), f.q_len(), f.kv_len()}, 0).first);
  add("sinks", f.sinks);
  add("alibi", f.alibi);
  add("relative", f.relative);
  describe(file, Json::object(), f.title,
      {.name = f.name, .q_len = f.q_len(), .kv_len = f.kv_len(), .layers = Json::array({std::move(layer)})},
      query_tokens, key_tokens);
  return file;
}

}  // namespace qkv::inline v0::view
