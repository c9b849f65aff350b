// Looking at attention while it runs: chosen rows of weights, the largest of each row, maps summed over blocks, statistics.
// Looking never changes the answer: the same kernels run, out, lse and gradients keep their bits, nothing of size Tq x Tk is
// made unless it is asked for. Not: all weights (AttentionOutputs), drawing (qkv/view), averages of weights over heads.
//
//   forward   w[i,j] = softmax(s[i,:])[j], before dropout (kWeights) or after it (kApplied)
//   backward  w[i,j] * dw[i,j], where dw[i,j] = factor[i,j] * dout[i].v[j] is the gradient of the loss for w[i,j] (kGradient):
//             attention times gradient, of which relevance maps are made (Chefer, Gur & Wolf 2021, arXiv:2103.15679, eq. 5)
//
// Of calls on views [B, H, T, D]; UnsupportedError on a KVCache (kv_cache.h) and in a ragged batch (varlen.h).
//
// What each costs, beside the same call without it: statistics are found on the way, in one sweep over the keys. All else needs
// the final sum of each row and so the scores a second time, of the chosen heads only.
// Memory: the results, and for each thread some rows of numbers: Tk for column_mass and map_columns for each query of a tile;
// 16 rows of Tk (with mean_of_heads 32) for relevance maps.
// Results are the same in bits for any number of threads.
// Letters: B, H, Tq, Tk as in attention.h; "heads" how many are chosen.
#pragma once

#include <vector>

#include "qkv/tensor.h"

namespace qkv {
inline namespace v0 {

/// What is looked at, and by which call: the other one ignores the request, so that both may be given the same options.
enum class CaptureOf {
  kWeights,  ///< forward: after softmax, before dropout
  kApplied,  ///< forward: after dropout, what multiplies v
  kGradient  ///< backward: weights times their gradient
};

/// What to look at. Errors: OptionError (a head, row or count that the call does not have, or that is named twice, one side of
/// a map without the other, offsets that are not one a sequence, statistics of gradients).
struct Capture {
  std::vector<Index> heads{};           ///< query heads, in this order; none: all
  std::vector<Index> rows{};            ///< queries whose whole rows are wanted, in this order
  Index top_k = 0;                      ///< of every row, its largest
  bool statistics = false;              ///< of every row; always of the weights before dropout; not in backward
  bool column_mass = false;             ///< of every key
  Index map_rows = 0, map_columns = 0;  ///< how fine the map is: both positive, or 0 for none
  CaptureOf of = CaptureOf::kWeights;
  std::vector<Index> offsets{};  ///< [B]: query i stands at key i + offset ("self"); none: Tk - Tq, the last at the last
  /// Relevance maps, kGradient only (UnsupportedError). Each entry is changed before anything is summed: first max(0, w dw),
  /// then the mean over `heads`, so that results have one head. An entry of 0 is not among the largest of its row.
  bool positive = false, mean_of_heads = false;
};

/// One number a row, [B, heads, Tq]. A row without keys (EmptyRow) has what its weights say: under kZero all 0, under kMean
/// those of weights 1/Tk, under kNaN NaN; a row with a NaN score has NaN throughout.
struct RowStatistics {
  Tensor<double> entropy;     ///< -sum_j w ln w, in nats: 0, one key; ln(n), n keys alike
  Tensor<double> max_weight;  ///< the largest weight
  Tensor<Index> max_key;      ///< its key, the first of equals (by score); -1: none
  Tensor<double> self;        ///< weight of the key at the query's own position i + offset; 0 where there is none
  Tensor<double> previous;    ///< weight of the key before it
  Tensor<double> first;       ///< weight of key 0
  Tensor<double> distance;    ///< sum_j w |i + offset - j|; a sink has none
  Tensor<double> sink;        ///< share of the sink: 1 - sum_j w; 0 where no sinks are given
};

/// What was seen. Owned by the caller, one for each call; tensors that fit are used again. What was not asked for is empty.
struct CaptureResult {
  Tensor<double> rows;         ///< [B, heads, rows, Tk]
  Tensor<double> top_weights;  ///< [B, heads, Tq, top_k], the largest first, 0 beyond the keys that may be attended
  Tensor<Index> top_keys;      ///< [B, heads, Tq, top_k], of equals the lower first, -1 beyond them
  Tensor<double> map;          ///< [B, heads, map_rows, map_columns]; (i, j) is summed at i map_rows / Tq, j map_columns / Tk
  Tensor<double> column_mass;  ///< [B, heads, Tk]: sum_i
  RowStatistics statistics;
};

/// A Capture and where to put what was seen; both are borrowed until the call returns. Default: nobody looks.
struct CaptureRequest {
  const Capture* what = nullptr;
  CaptureResult* result = nullptr;

  CaptureRequest() = default;
  CaptureRequest(const Capture& look, CaptureResult& seen) : what(&look), result(&seen) {}
};

}  // namespace v0
}  // namespace qkv
