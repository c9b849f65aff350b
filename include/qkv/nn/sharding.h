// Tensor parallelism of an attention layer, in one process: query, key and value projections cut by heads, the output
// projection by columns. A sum of the shards' outputs is the whole layer's, forward and backward. Not: sending anything
// anywhere; whoever has several machines puts the two sums where its own transport adds. Shoeybi 2019 (Megatron-LM,
// arXiv:1909.08053) sec. 3.
//
//   y  = sum_p  attention(x Wq[p]^T, x Wk[p]^T, x Wv[p]^T) Wo[:, p]^T + b_o        each shard reads all of x
//   dx = sum_p  dx[p]                                                              each shard reads all of dy
//   H = 4 heads, Hkv = 2, two shards:     q heads 0 1 | 2 3     k, v heads 0 | 1     columns of Wo 0 1 | 2 3
#pragma once

#include "qkv/nn/grouped_query_attention.h"

namespace qkv {
inline namespace v0 {
namespace nn {

/// Part `part` of `parts` of a layer with an output projection: its H / parts query heads and the key/value heads that they
/// read. parts divides H, and Hkv or is a multiple of it (then shards share a key/value head, each with a copy). The output's
/// bias is in part 0 alone. Norms over each head are copied. No dropout: heads are numbered from 0 in each shard. OptionError
/// for a number of parts that does not divide; UnsupportedError for norms over the whole vector, which no shard has.
QKV_API GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts);

/// The gradients of the shard's parameters added to their places in the whole layer's: the sum over all parts is its backward.
QKV_API void add_shard_gradients(AttentionLayer& whole, const GroupedQueryAttention& shard, Index part, Index parts);

}  // namespace nn
}  // namespace v0
}  // namespace qkv
