// The live part of a block of keys x queries as spans, from its lane masks: for each group of keys its queries, for
// each group of queries and each vector of lanes its keys.
#pragma once

#include "kernels/attention/scores.h"
#include "kernels/attention/scratch.h"
#include "kernels/products/spans.h"

namespace qkv {
namespace {

/// Adds `lanes` queries from `first` on, which attend all keys (kept) or none.
inline void add_whole_strip(bool kept, Index first, Index lanes, Index keys, const BlockSpans& spans) {
  for (Index i = first; i < first + lanes; i += kGroup) spans.keys_of[i / kGroup] = {0, kept ? keys : 0};
  if (!kept) return;
  for (Index j = 0; j < keys; j += kGroup) {
    Span& queries = spans.queries_of[j / kGroup];
    queries = join(queries, {first, first + lanes});
  }
}

/// Adds the queries of one masked strip; keys count by whole groups.
inline void add_masked_strip(
    const std::uint32_t* lane_mask, Index first, Index lanes, Index keys, const BlockSpans& spans) {
  constexpr std::uint32_t group_bits = (1u << kGroup) - 1u;
  const std::uint32_t all = lane_bits(lanes);
  std::uint32_t bits_of[kBackwardBlock / kGroup], begun = 0, ended = 0;
  for (Index i = first; i < first + lanes; i += kGroup) spans.keys_of[i / kGroup] = {0, 0};
  const auto each_new_group = [&](std::uint32_t fresh, std::uint32_t& done, const auto& body) {
    for (fresh &= ~done; fresh != 0; fresh &= ~done) {
      const Index lane = __builtin_ctz(fresh) / kGroup * kGroup;
      done |= group_bits << lane;
      body(spans.keys_of[(first + lane) / kGroup]);
    }
  };
  for (Index j = 0; j < keys; j += kGroup) {
    std::uint32_t bits = 0;
    for (Index one = j; one < smaller(keys, j + kGroup); ++one) bits |= lane_mask[one];
    bits_of[j / kGroup] = bits &= all;
    if (bits == 0) continue;
    Span& queries = spans.queries_of[j / kGroup];
    queries = join(queries, {first + __builtin_ctz(bits), first + 32 - __builtin_clz(bits)});
    each_new_group(bits, begun, [j](Span& span) { span.begin = j; });
  }
  for (Index j = round_up(keys, kGroup) - kGroup; j >= 0 && ended != begun; j -= kGroup) {
    each_new_group(bits_of[j / kGroup], ended, [&](Span& span) { span.end = smaller(keys, j + kGroup); });
  }
}

/// The keys of each vector: the span over those of its groups of queries.
template <class T> inline void find_vector_spans(Index queries, const BlockSpans& spans) {
  constexpr int n = Simd<T>::kLanes;
  for (Index first = 0; first < round_up(queries, kWideLanes<T>); first += n) {
    Span found{0, 0};
    for (Index i = first / kGroup * kGroup; i < smaller(queries, first + n); i += kGroup) {
      found = join(found, spans.keys_of[i / kGroup]);
    }
    spans.vector_keys[first / n] = found;
  }
}

}  // namespace
}  // namespace qkv
