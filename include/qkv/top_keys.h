// top_keys: the keys that a small indexer scores highest for each query, for Mask::keys. The "lightning indexer" of
// DeepSeek's sparse attention (DeepSeek-V3.2-Exp, 2025, eq. 1).
#pragma once

#include <cstdint>

#include "qkv/context.h"
#include "qkv/mask.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

struct TopKeysOptions {
  /// Keys that a query may choose from: Mask::causal(kBottomRight), lengths, documents, ...; no lists for each head.
  Mask mask;
};

namespace detail {
QKV_API void top_keys(const AnyView& q_index, const AnyView& k_index, const View<const float, 3>& weights,
    const View<std::int32_t, 4>& index, const TopKeysOptions& options, Context& context);
}

/// score[b, i, j] = sum_h weights[b, h, i] * relu(q_index[b, h, i] . k_index[b, j])
/// index[b, 0, i, :] = the keys of the largest scores, ascending by key; -1 where fewer may be attended. Of equal
/// scores the lower key wins; a NaN counts as the largest score, so that it reaches the output. q_index [B, H, Tq, D],
/// k_index [B, Tk, D], both with last stride 1; weights [B, H, Tq]; index [B, 1, Tq, k], k >= 1, written in full. No Tq
/// x Tk array exists: a thread holds 2 k numbers for each of at most 32 queries. Sums are float. Bit-identical for any
/// number of threads, queries and sequences. Throws ShapeError, and what the mask throws.
template <Operand Q>
  requires(sizeof(ElementOf<Q>) <= 4)
void top_keys(const Q& q_index, In<Q, 3> k_index, View<const float, 3> weights, View<std::int32_t, 4> index,
    const TopKeysOptions& options = {}, Context& context = Context::default_context()) {
  detail::top_keys(In<Q, 4>(q_index), k_index, weights, index, options, context);
}

}  // namespace qkv::inline v0
