// Sums over the queries, in the letters of qkv/view/kinds.h.
#include "qkv/view/kinds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "core/check.h"

namespace qkv::inline v0::view {
namespace {

constexpr std::array<std::string_view, 5> kNames = {
    "previous", "self", "duplicate", "induction", "local"};  // in the order of asking
constexpr double kThreshold = 0.5, kFirst = 0.9;
constexpr double kDiffuse = 0.95;  // scores of variance 1 over 500 keys have 0.92
constexpr double kHidden = -1e30;  // a bias below this is a mask written as a number
constexpr Index kLocal = 8, kQueries = 2048, kMostPairs = Index{1} << 18, kLeastRows = 4;

/// Of one kind and head.
struct Sums {
  double mass = 0, rest = 0, chance = 0;
};
struct Head {
  std::array<Sums, kNames.size()> of;
  double apart = 0, weighted = 0, even = 0;
};
using Targets = std::array<std::vector<Index>, kNames.size()>;
/// Where each token stands, in ascending order.
using Positions = std::unordered_map<Index, std::vector<Index>>;

double xlogx(double x) { return x * std::log(std::max(x, 1e-300)); }

/// Four chains: a sum the compiler may keep in one register.
double dot(const float* a, const float* b, Index n) {
  double sum[4] = {};
  Index d = 0;
  for (; d + 4 <= n; d += 4)
    for (Index l = 0; l < 4; ++l) sum[l] += static_cast<double>(a[d + l]) * static_cast<double>(b[d + l]);
  for (; d < n; ++d) sum[0] += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void check_call(const HeadCall& call, const char* function) {
  const View<const float, 3>&q = call.q, &k = call.k;
  const auto rows = std::array{q.size(0), q.size(1)};
  const auto fits = [&rows](const View<const double, 2>& x) { return x.is_null() || x.sizes() == rows; };
  const auto counts = [](const std::vector<Index>& x, Index size) {
    return x.empty() || static_cast<Index>(x.size()) == size;
  };
  check<ShapeError>(k.size(0) > 0 && q.size(0) % k.size(0) == 0 && q.size(2) == k.size(2), function,
      "q must be [H, Tq, D], k [Hkv, Tk, D]: got ", q, ", ", k);
  check<ShapeError>(q.stride(2) == 1 && k.stride(2) == 1, function, "the last axis of q and k must be contiguous");
  check<ShapeError>(call.lse.sizes() == rows && fits(call.entropy) && fits(call.sink), function,
      "lse, entropy and sink must be [H, Tq] = ", shape_text(rows.data(), 2));
  check<ShapeError>(
      counts(call.ids, k.size(1)) && counts(call.starts, q.size(1)), function, "ids must be [Tk], starts [Tq]");
  check<ShapeError>(!call.rows || std::ranges::all_of(*call.rows, [&](Index i) { return i >= 0 && i < rows[1]; }),
      function, "rows must be below Tq");
}

/// Sums over the queries of calls.
class Counted {
 public:
  Counted(Index num_heads, Index first, std::pair<Index, Index> grid)
      : first_(first), grid_(grid), heads_(static_cast<std::size_t>(num_heads)) {}

  void add(const HeadCall& call) {
    Positions positions;
    for (std::size_t j = 0; j < call.ids.size(); ++j) positions[call.ids[j]].push_back(static_cast<Index>(j));
    const Index count = call.rows ? static_cast<Index>(call.rows->size()) : call.q.size(1);
    // Of many queries some, evenly spaced; of tokens that have many equals fewer still.
    const Index step = std::max(Index{1}, (count + kQueries - 1) / kQueries);
    double equals = 0;
    for (const auto& [id, where] : positions) {
      const auto size = static_cast<double>(where.size());
      equals += size * size;
    }
    const double share = equals / static_cast<double>(step * kMostPairs);
    const Index each = std::max(Index{1}, static_cast<Index>(std::ceil(share)));
    for (Index n = 0; n < count; n += step) {
      const Index i = call.rows ? (*call.rows)[static_cast<std::size_t>(n)] : n;
      add_row(call, positions, i, !positions.empty() && n / step % each == 0);
    }
  }

  std::vector<HeadKind> named() const {
    std::vector<HeadKind> out;
    for (const Head& head : heads_) out.push_back(queries_ > 0 ? named(head) : HeadKind{"mixed", {}, 0, {}});
    return out;
  }

 private:
  void add_row(const HeadCall& call, const Positions& positions, Index i, bool with_equals) {
    const std::vector<std::uint8_t> keeps = call.keeps(i);
    const auto sees = [&](Index j) {
      return j >= 0 && j < static_cast<Index>(keeps.size()) && keeps[static_cast<std::size_t>(j)] != 0;
    };
    const Index start = call.starts.empty() ? 0 : call.starts[static_cast<std::size_t>(i)], behind = start + first_;
    std::vector<Index> apart;
    for (Index j = start; j < behind; ++j)
      if (sees(j)) apart.push_back(j);
    const Index others = std::count(keeps.begin(), keeps.end(), 1) - static_cast<Index>(apart.size());
    if (others < 1) return;
    ++queries_;
    if (others > 1) ++spread_;
    Targets targets;
    std::array<bool, kNames.size()> having{};
    if (call.same_text) find_targets(call, positions, i, start, with_equals, targets);
    for (std::size_t n = 0; n < kNames.size(); ++n) {
      std::erase_if(targets[n], [&](Index j) { return j < behind || !sees(j); });
      const auto count = static_cast<Index>(targets[n].size());
      having[n] = count > 0 && others > 1 && count < others;
      rows_[n] += having[n] ? 1 : 0;
    }
    for (Index h = 0; h < call.q.size(0); ++h) {
      Head& head = heads_[static_cast<std::size_t>(h)];
      double on_first = 0, left = call.entropy(h, i);
      for (const Index j : apart) {
        const double weight = call.weight(h, i, j);
        on_first += weight;
        left += xlogx(weight);
      }
      const double rest = std::clamp(1 - on_first - (call.sink.is_null() ? 0 : call.sink(h, i)), 0.0, 1.0);
      head.apart += 1 - rest;
      if (others > 1) {
        head.weighted += std::max(left + xlogx(rest), 0.0);
        head.even += rest * std::log(static_cast<double>(others));
      }
      for (std::size_t n = 0; n < kNames.size(); ++n) {
        if (!having[n]) continue;
        for (const Index j : targets[n]) head.of[n].mass += call.weight(h, i, j);
        head.of[n].rest += rest;
        head.of[n].chance += rest * static_cast<double>(targets[n].size()) / static_cast<double>(others);
      }
    }
  }

  /// The keys that speak for each kind of query i, without regard to its mask.
  void find_targets(const HeadCall& call, const Positions& positions, Index i, Index start, bool with_equals,
      Targets& targets) const {
    const Index at = i + call.offset;
    targets[0] = {at - 1};
    targets[1] = {at};
    if (grid_.second == 0) {
      for (Index j = at - kLocal; j <= at + kLocal; ++j) targets[4].push_back(j);
    } else if (at >= start + first_) {  // the patches around it
      const Index corner = start + first_, y = (at - corner) / grid_.second, x = (at - corner) % grid_.second;
      for (Index row = std::max(y - 1, Index{0}); row <= std::min(y + 1, grid_.first - 1); ++row)
        for (Index column = std::max(x - 1, Index{0}); column <= std::min(x + 1, grid_.second - 1); ++column)
          targets[4].push_back(corner + row * grid_.second + column);
    }
    if (!with_equals || at < 0 || at >= call.k.size(1)) return;
    for (const Index j : positions.at(call.ids[static_cast<std::size_t>(at)])) {
      if (j != at) targets[2].push_back(j);
      if (j + 1 != at && j != at) targets[3].push_back(j + 1);  // the token before it is the query's
    }
  }

  HeadKind named(const Head& head) const {
    HeadKind out{"mixed", {}, head.apart / static_cast<double>(queries_), {}};
    const auto say = [&out](std::string_view kind, double share) {
      if (out.share) return;
      out.kind = kind;
      out.share = share;
    };
    if (out.first >= kFirst) say("first", out.first);
    for (std::size_t n = 0; n < kNames.size(); ++n) {
      const Sums& sums = head.of[n];
      if (rows_[n] < kLeastRows || !(sums.rest > 1e-3 * static_cast<double>(rows_[n]))) continue;
      const double share = sums.mass / sums.rest, chance = sums.chance / sums.rest;
      out.shares.emplace_back(kNames[n], share);
      if (share - chance >= kThreshold * (1 - chance)) say(kNames[n], share);
    }
    if (spread_ >= kLeastRows && head.even > 1e-3 * static_cast<double>(queries_)) {
      out.shares.emplace_back("diffuse", head.weighted / head.even);
      if (head.weighted / head.even >= kDiffuse) say("diffuse", head.weighted / head.even);
    }
    return out;
  }

  Index first_;
  std::pair<Index, Index> grid_;
  std::vector<Head> heads_;
  std::array<Index, kNames.size()> rows_{};
  Index queries_ = 0, spread_ = 0;  // with a key behind the first ones, with several
};

}  // namespace

double HeadCall::weight(Index h, Index i, Index j) const {
  double x = scale * dot(&q(h, i, 0), &k(h / (q.size(0) / k.size(0)), j, 0), q.size(2));
  if (softcap > 0) x = softcap * std::tanh(x / softcap);
  if (bias) x += bias(h, i, j);
  const double sum = lse(h, i);
  return std::isinf(sum) && sum < 0 ? 0 : std::exp(x - sum);
}

std::vector<std::uint8_t> HeadCall::keeps(Index i) const {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(k.size(1)));
  mask_rows(mask, {batch, q.size(0), q.size(1), k.size(1)}, sequence, 0, {&i, 1}, {row.data(), {1, k.size(1)}});
  for (Index j = 0; bias && j < k.size(1); ++j)
    if (bias(0, i, j) < kHidden) row[static_cast<std::size_t>(j)] = 0;
  return row;
}

std::vector<HeadKind> kinds_of_heads(std::span<const HeadCall> calls, Index first, std::pair<Index, Index> grid) {
  if (calls.empty()) return {};
  Counted counted(calls[0].q.size(0), first, grid);
  for (const HeadCall& call : calls) {
    check_call(call, "kinds_of_heads");
    check<ShapeError>(call.q.size(0) == calls[0].q.size(0) && !call.entropy.is_null(), "kinds_of_heads",
        "all calls must have the same heads, and their entropies");
    counted.add(call);
  }
  return counted.named();
}

std::pair<Tensor<float>, bool> key_intervals(const Mask& mask, const std::array<Index, 4>& sizes, Index sequence) {
  Tensor<float> out({sizes[2], 2});
  bool all_between = true;
  std::vector<std::uint8_t> row(static_cast<std::size_t>(sizes[3]));
  for (Index i = 0; i < sizes[2]; ++i) {
    mask_rows(mask, sizes, sequence, 0, {&i, 1}, {row.data(), {1, sizes[3]}});
    const auto first = std::ranges::find(row, 1), behind = std::find(first, row.end(), 0);
    const auto last = std::find(row.rbegin(), row.rend(), 1);
    all_between = all_between && (first == row.end() || last.base() == behind);
    out.data()[2 * i] = first == row.end() ? 0.0F : static_cast<float>(first - row.begin());
    out.data()[2 * i + 1] = static_cast<float>(last.base() - row.begin());
  }
  return {std::move(out), all_between};
}

Tensor<double> weights_of_rows(const HeadCall& call, std::span<const Index> rows) {
  check_call(call, "weights_of_rows");
  const Index kv_len = call.k.size(1), count = static_cast<Index>(rows.size());
  Tensor<double> out({call.q.size(0), count, kv_len});
  for (Index n = 0; n < count; ++n) {
    const Index i = rows[static_cast<std::size_t>(n)];
    const std::vector<std::uint8_t> keeps = call.keeps(i);
    for (Index h = 0; h < call.q.size(0); ++h)
      for (Index j = 0; j < kv_len; ++j)
        out.data()[(h * count + n) * kv_len + j] = keeps[static_cast<std::size_t>(j)] != 0 ? call.weight(h, i, j) : 0;
  }
  return out;
}

}  // namespace qkv::inline v0::view
