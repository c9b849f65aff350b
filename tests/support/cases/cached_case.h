// Cases for attention on caches, and a call's results as one value that can be compared.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "support/cases/caches.h"
#include "support/checks/expect.h"

namespace qkv::test {

inline constexpr std::array kLayouts = {
    CacheKind::kContiguous, CacheKind::kPages1, CacheKind::kPages16, CacheKind::kPages100};

inline AttentionCase cached_case(
    Index group, Index q_len, Index kv_len, Index head_dim, Index v_head_dim, MaskKind mask = MaskKind::kNone) {
  AttentionCase made{1, 2 * group, 2, q_len, kv_len, head_dim, v_head_dim, mask};
  made.seed = static_cast<std::uint64_t>(group + 10 * q_len + 100 * kv_len);
  return made;
}

/// Few and many queries, over the borders of chunks and pages.
inline std::vector<AttentionCase> cached_shapes() {
  std::vector<AttentionCase> cases;
  for (const Index kv_len : {64, 100, 257, 700, 1300}) cases.push_back(cached_case(2, 1, kv_len, 20, 36));
  cases.push_back(cached_case(4, 1, 5000, 64, 64));
  cases.push_back(cached_case(4, 3, 1100, 33, 9, MaskKind::kCausalBottomRight));
  cases.push_back(cached_case(1, 16, 1100, 40, 8, MaskKind::kCausalBottomRight));
  cases.push_back(cached_case(2, 40, 333, 64, 64, MaskKind::kCausalBottomRight));
  cases.push_back(cached_case(1, 150, 150, 17, 24, MaskKind::kCausal));
  cases.push_back(cached_case(3, 70, 500, 128, 40, MaskKind::kWindowAndKeep));
  cases.push_back(cached_case(1, 30, 70, 728, 728));
  cases.back().softcap = 5;
  cases.push_back(cached_case(2, 90, 260, 24, 24, MaskKind::kKeepHqk));
  cases.back().bias = BiasKind::kFull;
  cases.back().batch = 3;
  return cases;
}

/// out and lse of a call on a cache.
template <class T> struct Answer {
  Tensor<T> out;
  Tensor<Accumulator<T>> lse;

  Answer(const View<const T, 4>& q, const KeyValue& kv, const AttentionOptions& options, Context& context)
      : out({q.size(0), q.size(1), q.size(2), kv.v_head_dim()}), lse({q.size(0), q.size(1), q.size(2)}) {
    std::ranges::fill(out.span(), kQuietNan<T>);
    attention_forward(q, kv, {.out = out, .lse = lse}, options, context);
  }
  template <class V>
  Answer(const View<const T, 4>& q, const V& k, const V& v, const AttentionOptions& options, Context& context)
      : out({q.size(0), q.size(1), q.size(2), v.size(3)}), lse({q.size(0), q.size(1), q.size(2)}) {
    attention_forward(q, k, v, {.out = out, .lse = lse}, options, context);
  }
  bool operator==(const Answer& other) const { return same_bits(out, other.out) && same_bits(lse, other.lse); }
};

}  // namespace qkv::test
