// Sums over the queries, in the letters of kinds.h: r is what a row leaves to keys behind the first one,
//   share = sum_i (weights on the pairs in question) / sum_i r_i over the queries that have such a pair and another key too,
//   score = (share - chance) / (1 - chance), diffuse = sum_i r_i H_i / sum_i r_i ln n_i.
#include "view/explore/kinds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

namespace qkv::inline v0::view {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"previous", "self", "duplicate", "induction",
                                                    "local"};  // in the order of asking
constexpr double kThreshold = 0.5, kFirst = 0.9, kDiffuse = 0.95;
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

double xlogx(double x) { return x * std::log(std::max(x, 1e-300)); }

/// Where each token stands, in ascending order.
using Places = std::unordered_map<Index, std::vector<Index>>;

/// The keys that speak for each kind of query i, without regard to what it sees.
void find_targets(const LookedAt& call, const Places& places, Index i, bool with_equals, Targets& targets) {
  const Index at = i + call.offset;
  targets[0] = {at - 1};
  targets[1] = {at};
  targets[2].clear();
  targets[3].clear();
  targets[4].clear();
  for (Index j = at - kLocal; j <= at + kLocal; ++j) targets[4].push_back(j);
  if (!with_equals || at < 0 || at >= call.kv_len) return;
  for (const Index j : places.at(call.ids[static_cast<std::size_t>(at)])) {
    if (j != at) targets[2].push_back(j);
    if (j + 1 != at && j != at) targets[3].push_back(j + 1);  // the token before it is the query's
  }
}

HeadKind named(const Head& head, const std::array<Index, kNames.size()>& rows, Index queries, Index spread) {
  HeadKind out{"mixed", {}, head.apart / static_cast<double>(queries), {}};
  const auto say = [&out](std::string_view kind, double share) {
    if (out.share) return;
    out.kind = kind;
    out.share = share;
  };
  if (out.first >= kFirst) say("first", out.first);
  for (std::size_t n = 0; n < kNames.size(); ++n) {
    const Sums& sums = head.of[n];
    if (rows[n] < kLeastRows || !(sums.rest > 1e-3 * static_cast<double>(rows[n]))) continue;
    const double share = sums.mass / sums.rest, chance = sums.chance / sums.rest;
    out.shares.emplace_back(kNames[n], share);
    if (share - chance >= kThreshold * (1 - chance)) say(kNames[n], share);
  }
  if (spread >= kLeastRows && head.even > 1e-3 * static_cast<double>(queries)) {
    out.shares.emplace_back("diffuse", head.weighted / head.even);
    if (head.weighted / head.even >= kDiffuse) say("diffuse", head.weighted / head.even);
  }
  return out;
}

}  // namespace

std::vector<HeadKind> kinds_of_heads(const LookedAt& call) {
  const Index num_heads = call.num_heads, q_len = call.q_len;
  std::vector<Head> heads(static_cast<std::size_t>(num_heads));
  std::array<Index, kNames.size()> rows{};
  Index queries = 0, spread = 0;
  Places places;
  for (std::size_t j = 0; j < call.ids.size(); ++j) places[call.ids[j]].push_back(static_cast<Index>(j));
  // Of many queries some, evenly spaced; of tokens that have many equals fewer still.
  const Index step = (q_len + kQueries - 1) / kQueries;
  double equals = 0;
  for (const auto& [id, where] : places) equals += static_cast<double>(where.size()) * static_cast<double>(where.size());
  const Index each = std::max(Index{1}, static_cast<Index>(std::ceil(equals / static_cast<double>(step * kMostPairs))));
  Targets targets;
  for (Index i = 0; i < q_len; i += step) {
    const auto [begin, end] = call.keys(i);
    const bool has_first = begin == 0 && end > 0;
    const Index others = end - begin - (has_first ? 1 : 0);
    if (others < 1) continue;
    ++queries;
    if (others > 1) ++spread;
    if (call.same_text) find_targets(call, places, i, !places.empty() && (i / step) % each == 0, targets);
    std::array<bool, kNames.size()> having{};
    for (std::size_t n = 0; call.same_text && n < kNames.size(); ++n) {
      std::erase_if(targets[n], [from = std::max(Index{1}, begin), behind = end](Index j) { return j < from || j >= behind; });
      const auto count = static_cast<Index>(targets[n].size());
      having[n] = count > 0 && others > 1 && count < others;
      rows[n] += having[n] ? 1 : 0;
    }
    for (Index h = 0; h < num_heads; ++h) {
      Head& head = heads[static_cast<std::size_t>(h)];
      const double on_first = has_first ? call.weight(h, i, 0) : 0;
      const double sink = call.sink.count() > 0 ? call.sink.data()[h * q_len + i] : 0;
      const double rest = std::clamp(1 - on_first - sink, 0.0, 1.0);
      head.apart += 1 - rest;
      if (others > 1) {
        head.weighted += std::max(call.entropy.data()[h * q_len + i] + xlogx(on_first) + xlogx(rest), 0.0);
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
  std::vector<HeadKind> out;
  for (const Head& head : heads) out.push_back(queries > 0 ? named(head, rows, queries, spread) : HeadKind{"mixed", {}, 0, {}});
  return out;
}

}  // namespace qkv::inline v0::view
