// Tensor parallelism of an attention layer, in one process: query, key and value projections are split by heads, the
// output projection by columns. The sum of the shards' outputs is the whole layer's, forward and backward. Not:
// communication; on several machines the two sums are all-reduces of your own transport. Shoeybi 2019 (Megatron-LM,
// arXiv:1909.08053) sec. 3.
//
//   y  = sum_p  attention(x Wq[p]^T, x Wk[p]^T, x Wv[p]^T) Wo[:, p]^T + b_o        each shard reads all of x
//   dx = sum_p  dx[p]                                                              each shard reads all of dy
//   H = 4 heads, Hkv = 2, two shards:     q heads 0 1 | 2 3     k, v heads 0 | 1     columns of Wo 0 1 | 2 3
#pragma once

#include "qkv/nn/self_attention.h"

namespace qkv::inline v0::nn {

/// Shard `part` of `parts` of a layer with an output projection: its H / parts query heads and the key/value heads
/// that they read. parts divides H, and divides Hkv or is a multiple of it (then shards share a key/value head, each
/// with a copy). Only part 0 has the output's bias. Norms over each head are copied. Dropout drops what it drops in
/// the whole, given the same seed: on weights by the whole's heads, on the output in every shard's part of it. A mask
/// with an axis of heads has the whole's; in step() the shard's own. Shards may be cut again: heads keep their numbers
/// in the first whole.
/// OptionError when parts does not divide; UnsupportedError for norms over the whole vector, which no shard holds.
QKV_API GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts);

/// Adds the gradients of the shard's parameters to theirs in the whole layer: summed over all parts, its backward.
QKV_API void add_shard_gradients(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts);

/// Copies the shard's parameters into the whole layer, which has those of all shards after the last part. Norms are the
/// last part's.
QKV_API void merge_shard(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts);

}  // namespace qkv::inline v0::nn
