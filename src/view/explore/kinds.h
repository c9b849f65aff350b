// What a head does, said from sums of its weights: previous, self, duplicate, induction, local, diffuse, first, or mixed. The same
// rules and numbers as python/qkv/_explore/kinds.py, which says them for running models (docs/explore.md, "What a head is called").
// Not: weights, which the caller gives pair by pair.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::view {

/// One call of attention, whose query i stands at key i + offset.
struct LookedAt {
  Index num_heads, q_len, kv_len, offset;
  bool same_text;                                      ///< otherwise only first and diffuse are asked for
  const Tensor<double>&entropy, &sink;                 ///< [1, H, Tq]; sink: empty where there is none
  std::vector<Index> ids;                              ///< [Tk]: equal numbers for equal tokens; empty: not known
  std::function<std::pair<Index, Index>(Index)> keys;  ///< (i) -> the keys [begin, end) that it sees
  std::function<double(Index, Index, Index)> weight;   ///< (h, i, j), of a key that is seen
};

struct HeadKind {
  std::string_view kind;
  std::optional<double> share;                              ///< that speaks for it; none: mixed
  double first = 0;                                         ///< mass on the first key, with a learned sink's
  std::vector<std::pair<std::string_view, double>> shares;  ///< of every other kind that was asked for
};

/// One per head.
std::vector<HeadKind> kinds_of_heads(const LookedAt& call);

}  // namespace qkv::inline v0::view
