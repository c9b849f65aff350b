// Captures attention while it runs: chosen rows of weights, the largest of each row, maps summed over blocks,
// statistics. A capture never changes the results: the same kernels run, out, lse and gradients stay bit-identical, and
// nothing of size Tq x Tk is allocated unless it is requested.
//
//   forward   w[i,j] = softmax(s[i,:])[j], before dropout (kWeights) or after it (kApplied)
//   backward  w[i,j] * dw[i,j], where dw[i,j] = factor[i,j] * dout[i].v[j] is the gradient of the loss by w[i,j]
//             (kGradient): attention times gradient, from which relevance maps are built (Chefer, Gur & Wolf 2021,
//             arXiv:2103.15679, eq. 5); 0 in a row that may attend to no key, whatever EmptyRow is
//
// Works for calls on views [B, H, T, D] and on caches (kv_cache.h), where Tk is the largest length and a map is laid
// over the keys of each sequence; UnsupportedError in a ragged batch (varlen.h).
//
// Added cost: statistics are computed along the way, in one sweep over the keys. Everything else needs the final sum of
// each row, and so computes the scores of the chosen heads a second time. Memory: the results, and some rows of numbers
// per thread: Tk numbers for column_mass, map_columns for each query of a tile. Results are bit-identical for any
// number of threads. Letters: B, H, Tq, Tk as in attention.h; "heads" is the number of chosen heads.
#pragma once

#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// The values to capture and the call that does; the other ignores the request, so both may be passed the same options.
enum class CaptureOf {
  kWeights,  ///< forward: after softmax, before dropout
  kApplied,  ///< forward: after dropout, what multiplies v
  kGradient  ///< backward: weights times their gradient
};

/// A request. Errors: OptionError (a head, row or count that the call does not have, a head or row that is named
/// twice, one side of a map without the other, a number of offsets other than one per sequence, statistics of
/// gradients).
struct Capture {
  std::vector<Index> heads{};           ///< query heads, in this order; empty: all
  std::vector<Index> rows{};            ///< queries whose whole rows are wanted, in this order
  Index top_k = 0;                      ///< how many of the largest weights of every row
  bool statistics = false;              ///< of every row, always from the weights before dropout; not in backward
  bool column_mass = false;             ///< sum of the weights of every key
  Index map_rows = 0, map_columns = 0;  ///< size of the map: both positive, or both 0 for no map
  CaptureOf of = CaptureOf::kWeights;
  /// [B]: query i stands at key i + offset ("self"); empty: Tk - Tq, the last at the last.
  std::vector<Index> offsets{};
  /// Relevance maps, kGradient only (UnsupportedError): max(0, w dw) instead of each entry, and an entry of 0 is never
  /// among the largest of its row.
  bool positive = false;
};

/// One number per row, [B, heads, Tq]. The statistics of a row without keys (EmptyRow) are those of its weights: all 0
/// under kZero, those of weights 1/Tk under kMean, NaN under kNaN; a row with a NaN score has NaN throughout.
struct RowStatistics {
  Tensor<double> entropy;     ///< -sum_j w ln w, in nats: 0 for one key, ln(n) for n equal weights
  Tensor<double> max_weight;  ///< the largest weight
  Tensor<Index> max_key;      ///< its key, the first of equals (by score); -1: no key
  Tensor<double> self;        ///< weight of the key at the query's own position i + offset; 0 where there is none
  Tensor<double> previous;    ///< weight of the key before it
  Tensor<double> first;       ///< weight of key 0
  Tensor<double> distance;    ///< sum_j w |i + offset - j|; a sink adds nothing
  Tensor<double> sink;        ///< share of the sink: 1 - sum_j w; 0 where no sinks are given
};

/// The captured values. Owned by the caller, one for each call; tensors that fit are used again. Values not requested
/// are empty.
struct CaptureResult {
  Tensor<double> rows;         ///< [B, heads, rows, Tk]
  Tensor<double> top_weights;  ///< [B, heads, Tq, top_k], the largest first, 0 beyond the keys that may be attended
  Tensor<Index> top_keys;      ///< [B, heads, Tq, top_k], of equals the lower key first, -1 beyond them
  Tensor<double> map;  ///< [B, heads, map_rows, map_columns]; (i, j) is added at i map_rows / Tq, j map_columns / Tk
  Tensor<double> column_mass;  ///< [B, heads, Tk]: sum_i w
  RowStatistics statistics;
};

/// A Capture and where to put its result; both are borrowed until the call returns. Default: no capture.
struct CaptureRequest {
  const Capture* what = nullptr;
  CaptureResult* result = nullptr;

  CaptureRequest() = default;
  CaptureRequest(const Capture& of, CaptureResult& to) : what(&of), result(&to) {}
};

}  // namespace qkv::inline v0
