// Tile sizes and the layout of scratch memory, with the reason for each size. Not: who lends the memory (core/scratch.h).
#pragma once

#include "kernels/attention/params.h"
#include "kernels/carver.h"
#include "kernels/products/gemm.h"
#include "kernels/products/spans.h"

namespace qkv {
namespace {

/// Keys whose P and dS backward holds at once. 64 x 128 floats twice are 64 KiB: with K, V, Q, dO rows they stay in a 1 MiB L2.
constexpr Index kBackwardBlock = 64;
constexpr Index kStripsPerTile = 4;                    // 2: forward up to 3 % slower; 8: backward of D = 512 a sixth slower
constexpr Index kScratchBudgetBytes = Index{3} << 19;  // panels may take 1.5 MiB of the 2 MiB that a thread may use

/// K and V chunks stream from L2. Measured: 128 keys gain 2 % over 64 at D = 128; at D = 1024 32 or 64 reach 83 %, 128 71.
template <class T>
Index key_tile(Index head_dim, Index v_head_dim) {
  const Index width = larger(head_dim, v_head_dim) * static_cast<Index>(sizeof(T));
  if (width <= 512) return 128;
  return width <= 2048 ? 64 : 32;
}

template <class T>
Index query_tile(Index head_dim, Index v_head_dim) {
  const Index strip_bytes = strip_lanes<T>() * (head_dim + v_head_dim) * static_cast<Index>(sizeof(T));
  const Index strips = larger<Index>(1, smaller<Index>(kStripsPerTile, kScratchBudgetBytes / strip_bytes));
  return strip_lanes<T>() * (strips == 3 ? 2 : strips);  // whole panels of two strips, or one strip
}

/// Packing Q^T and dO^T of a query tile is paid once per backward item: 256 keys at D = 64 make it less than 2 %.
template <class T>
Index backward_keys(Index head_dim, Index v_head_dim) {
  const Index wanted = 65536 / (larger(head_dim, v_head_dim) * static_cast<Index>(sizeof(T)));
  return larger(kBackwardBlock, smaller<Index>(512, wanted / kBackwardBlock * kBackwardBlock));
}

/// Queries of a work item of 16-bit rows. Backward holds each query as float in two panels, two widened rows and a row of dq,
/// and each key as two widened rows and rows of dk and dv. Up to a width of 512 the tile is the float one; wider heads halve it
/// until everything fits the 2 MiB that a thread may use.
inline Index widened_query_tile(Index head_dim, Index v_head_dim) {
  constexpr Index float_bytes = sizeof(float);
  constexpr Index budget = (Index{2} << 20) - (Index{1} << 16);  // what does not grow with the width takes less than 64 KiB
  const Index width = head_dim + v_head_dim;
  const Index key_bytes = 2 * width * float_bytes, query_bytes = (2 * width + head_dim + 2 * kBackwardBlock) * float_bytes;
  const Index left = budget - backward_keys<float>(head_dim, v_head_dim) * key_bytes;
  Index queries = query_tile<float>(head_dim, v_head_dim);
  while (queries > strip_lanes<float>() && queries * query_bytes > left) queries /= 2;
  return queries;
}

template <class T>
struct ForwardScratch {
  T* q_panels;                      // [strips][D][strip], scaled
  T* out_panels;                    // [strips][Dv][strip], not yet divided by row_sum
  T *row_max, *row_sum;             // [strips][strip]; row_max in powers of two
  T* scores;                        // [key_tile][strip]
  T* bias;                          // [key_tile][strip]
  T* rescale;                       // [strip]
  std::uint32_t* seen;              // [strips]: lanes that attended a key so far
  std::uint32_t* by_maximum;        // [strips]: lanes whose softmax subtracts the row maximum (softmax.h)
  std::uint32_t *lane_mask, *kept;  // [key_tile]: lanes that may attend, lanes that survive dropout
  std::size_t bytes;

  ForwardScratch(void* base, Index head_dim, Index v_head_dim)
      : ForwardScratch(base, head_dim, v_head_dim, query_tile<T>(head_dim, v_head_dim)) {}
  ForwardScratch(void* base, Index head_dim, Index v_head_dim, Index queries) {
    Carver carver(base);
    const Index keys = key_tile<T>(head_dim, v_head_dim);
    q_panels = carver.take<T>(queries * head_dim);
    out_panels = carver.take<T>(queries * v_head_dim);
    row_max = carver.take<T>(queries);
    row_sum = carver.take<T>(queries);
    scores = carver.take<T>(keys * strip_lanes<T>());
    bias = carver.take<T>(keys * strip_lanes<T>());
    rescale = carver.take<T>(strip_lanes<T>());
    seen = carver.take<std::uint32_t>(queries / strip_lanes<T>());
    by_maximum = carver.take<std::uint32_t>(queries / strip_lanes<T>());
    lane_mask = carver.take<std::uint32_t>(keys);
    kept = carver.take<std::uint32_t>(keys);
    bytes = carver.used();
  }
};

/// What of one block of keys x queries the mask leaves alive.
struct BlockSpans {
  Span* queries_of;   // [keys / kGroup]: the queries that attend one of these keys
  Span* keys_of;      // [queries / kGroup]: the keys that one of these queries attends
  Span* vector_keys;  // [vectors of lanes]: the same for a vector of queries, in whole groups of keys
};

template <class T>
struct BackwardScratch {
  T* q_panels;                      // [query_tile / panel][D][panel], scaled
  T* dout_panels;                   // [query_tile / panel][Dv][panel]
  T *lse2_high, *lse2_low, *delta;  // [query_tile]
  T* p;                             // [kBackwardBlock][row]: P^T after dropout
  T* ds;                            // [kBackwardBlock][row]: dS^T, before scale
  T* bias;                          // [kBackwardBlock][strip]: bias in; with a soft cap or a callback, dS of the bias out
  T* slopes;                        // [kBackwardBlock][strip]: the callback's derivative
  std::uint32_t* lane_mask;         // [strips][kBackwardBlock]
  std::uint32_t* kept;              // [kBackwardBlock]: dropout bits of one strip
  BlockSpans spans;
  bool nonfinite = false;  // q or dout of the tile hold NaN or infinity
  Index width;             // queries of a tile
  Index panel;             // queries side by side in a panel
  Index row;               // one vector more than the tile: rows a power of two apart would share few cache sets
  std::size_t bytes;

  BackwardScratch(void* base, Index head_dim, Index v_head_dim)
      : BackwardScratch(base, head_dim, v_head_dim, query_tile<T>(head_dim, v_head_dim)) {}
  BackwardScratch(void* base, Index head_dim, Index v_head_dim, Index queries) : width(queries) {
    Carver carver(base);
    panel = smaller(width, kWideLanes<T>);
    row = width + Simd<T>::kLanes;
    q_panels = carver.take<T>(width * head_dim);
    dout_panels = carver.take<T>(width * v_head_dim);
    lse2_high = carver.take<T>(width);
    lse2_low = carver.take<T>(width);
    delta = carver.take<T>(width);
    p = carver.take<T>(kBackwardBlock * row);
    ds = carver.take<T>(kBackwardBlock * row);
    bias = carver.take<T>(kBackwardBlock * strip_lanes<T>());
    slopes = carver.take<T>(kBackwardBlock * strip_lanes<T>());
    lane_mask = carver.take<std::uint32_t>(width / strip_lanes<T>() * kBackwardBlock);
    kept = carver.take<std::uint32_t>(kBackwardBlock);
    const Index lanes = round_up(width, kWideLanes<T>);
    spans = {carver.take<Span>(kBackwardBlock / kGroup), carver.take<Span>(lanes / kGroup),
             carver.take<Span>(lanes / Simd<T>::kLanes)};
    bytes = carver.used();
  }
};

}  // namespace
}  // namespace qkv
