// Tile sizes and the layout of scratch memory, with the reason for each size.
#pragma once

#include "kernels/attention/params.h"
#include "kernels/carver.h"
#include "kernels/products/gemm.h"
#include "kernels/products/spans.h"

namespace qkv {
namespace {

/// Keys whose P and dS backward holds at once. 64 x 128 floats twice are 64 KiB: with K, V, Q, dO rows they stay in a 1
/// MiB L2.
constexpr Index kBackwardBlock = 64;
constexpr Index kStripsPerTile = 4;  // 2: forward up to 3 % slower; 8: backward of D = 512 a sixth slower
/// Queries of a backward tile with invariant bits, fewer where heads are wide: dk and dv are added up tile by tile, so
/// tiles are the same on every instruction set.
template <class T> constexpr Index kSumQueries = 256 / Index{sizeof(T)};
template <class T> constexpr Index kFewestSumQueries = kSumQueries<T> / 4;
template <class T> constexpr Index kMostStrips = larger(kStripsPerTile, kSumQueries<T> / strip_lanes<T>());
constexpr Index kScratchBudgetBytes = Index{3} << 19;  // panels may take 1.5 MiB of the 2 MiB that a thread may use

/// K and V chunks stream from L2. Measured: 128 keys gain 2 % over 64 at D = 128; at D = 1024 32 or 64 reach 83 %,
/// 128 71.
constexpr Index kMostKeys = 128;
/// K and V of a tile that L2 does not keep until the next tile: each chunk is fetched during the one before it.
constexpr Index kStreamedBytes = Index{1} << 20;
constexpr Index kKeysAhead = 32;  // between the fetch of a row and its use, where few queries wait; 24, 48: slower
template <class T> Index key_tile(Index head_dim, Index v_head_dim) {
  const Index width = larger(head_dim, v_head_dim) * static_cast<Index>(sizeof(T));
  if (width <= 512) return kMostKeys;
  return width <= 2048 ? 64 : 32;
}

template <class T> Index query_tile(Index head_dim, Index v_head_dim) {
  const Index strip_bytes = strip_lanes<T>() * (head_dim + v_head_dim) * static_cast<Index>(sizeof(T));
  const Index strips = larger<Index>(1, smaller<Index>(kStripsPerTile, kScratchBudgetBytes / strip_bytes));
  return strip_lanes<T>() * (strips == 3 ? 2 : strips);  // whole panels of two strips, or one strip
}
template <class T> Index sum_queries(Index head_dim, Index v_head_dim) {
  const Index row_bytes = (head_dim + v_head_dim) * static_cast<Index>(sizeof(T));
  Index queries = kSumQueries<T>;
  while (queries > kFewestSumQueries<T> && queries * row_bytes > kScratchBudgetBytes) queries /= 2;
  return queries;
}

/// Packing Q^T and dO^T of a query tile is paid once per backward item: 256 keys at D = 64 make it less than 2 %.
template <class T> Index backward_keys(Index head_dim, Index v_head_dim) {
  const Index wanted = 65536 / (larger(head_dim, v_head_dim) * static_cast<Index>(sizeof(T)));
  return larger(kBackwardBlock, smaller<Index>(512, wanted / kBackwardBlock * kBackwardBlock));
}

/// Queries of a work item whose rows are copied. Backward holds each query in two panels, two copied rows and a row of
/// dq, and each key as two copied rows and rows of dk and dv. Up to a width of 512 floats the tile is query_tile; wider
/// heads halve it until everything fits the 2 MiB that a thread may use.
template <class T> Index widened_queries(Index head_dim, Index v_head_dim, Index queries, Index fewest) {
  constexpr Index size = sizeof(T);
  // what does not grow with the width takes less than 64 KiB
  constexpr Index budget = (Index{2} << 20) - (Index{1} << 16);
  const Index width = head_dim + v_head_dim;
  const Index key_bytes = 2 * width * size, query_bytes = (2 * width + head_dim + 2 * kBackwardBlock) * size;
  const Index left = budget - backward_keys<T>(head_dim, v_head_dim) * key_bytes;
  while (queries > fewest && queries * query_bytes > left) queries /= 2;
  return queries;
}
template <class T> Index widened_query_tile(Index head_dim, Index v_head_dim) {
  return widened_queries<T>(head_dim, v_head_dim, query_tile<T>(head_dim, v_head_dim), strip_lanes<T>());
}
/// The same number on every instruction set.
template <class T> Index sum_queries_of(StoredType rows, Index head_dim, Index v_head_dim) {
  const Index queries = sum_queries<T>(head_dim, v_head_dim);
  if (rows == stored_as<T>()) return queries;
  return widened_queries<T>(head_dim, v_head_dim, queries, kFewestSumQueries<T>);
}
template <class T> Index query_tile_of(StoredType rows, Index head_dim, Index v_head_dim) {
  return rows == stored_as<T>() ? query_tile<T>(head_dim, v_head_dim) : widened_query_tile<T>(head_dim, v_head_dim);
}

/// Queries of a work item whose rows are copied: fewer where wide heads leave no room for a chunk's rows in a thread's
/// 2 MiB.
/// `everywhere`: the same number on every instruction set.
template <class T> Index copied_query_tile(Index head_dim, Index v_head_dim, bool everywhere) {
  constexpr Index size = static_cast<Index>(sizeof(T)), budget = (Index{2} << 20) - (Index{1} << 17);
  const Index strip = everywhere ? 128 / size : strip_lanes<T>(), fewest = everywhere ? kFewestSumQueries<T> : strip;
  const Index fixed =
      (key_tile<T>(head_dim, v_head_dim) * (head_dim + v_head_dim) + strip * larger(head_dim, v_head_dim)) * size;
  Index queries = everywhere ? sum_queries<T>(head_dim, v_head_dim) : query_tile<T>(head_dim, v_head_dim);
  while (queries > fewest && queries * (head_dim + v_head_dim) * size + fixed > budget) queries /= 2;
  return queries;
}

/// Of a tile of `queries`, up to whole strips. `copies`: with room for rows that cannot be read or written in place.
template <class T> struct ForwardScratch {
  Carver carver;
  Index head_dim, v_head_dim, queries, keys = key_tile<T>(head_dim, v_head_dim);
  T* q_panels = carver.array<T>(queries * head_dim);      // [strips][D][strip], scaled
  T* out_panels = carver.array<T>(queries * v_head_dim);  // [strips][Dv][strip], not yet divided by row_sum
  T* row_max = carver.array<T>(queries);                  // [strips][strip], in powers of two
  T* row_sum = carver.array<T>(queries);                  // [strips][strip]
  T* scores = carver.array<T>(keys * strip_lanes<T>());   // [key_tile][strip]
  T* bias = carver.array<T>(keys * strip_lanes<T>());     // [key_tile][strip]
  T* rescale = carver.array<T>(strip_lanes<T>());         // [strip]
  // [strips]: lanes that attended a key so far; lanes whose softmax subtracts the row maximum (softmax.h).
  std::uint32_t* attended = carver.array<std::uint32_t>(queries / strip_lanes<T>());
  std::uint32_t* by_maximum = carver.array<std::uint32_t>(queries / strip_lanes<T>());
  std::uint32_t* lane_mask = carver.array<std::uint32_t>(keys);  // [key_tile]: lanes that may attend
  std::uint32_t* kept = carver.array<std::uint32_t>(keys);       // [key_tile]: lanes that survive dropout
  // [strip][larger of D and Dv]: queries on their way in, results on their way out. And a chunk of K and V.
  T *rows = nullptr, *k = nullptr, *v = nullptr;
  std::size_t bytes;

  ForwardScratch(void* base, Index d, Index dv, Index count, bool copies)
      : carver(base), head_dim(d), v_head_dim(dv), queries(round_up(count, strip_lanes<T>())) {
    if (copies) {
      rows = carver.array<T>(strip_lanes<T>() * larger(d, dv));
      k = carver.array<T>(keys * d);
      v = carver.array<T>(keys * dv);
    }
    bytes = carver.used();
  }
};
template <class T> std::size_t forward_scratch_bytes(Index head_dim, Index v_head_dim, Index queries, bool copies) {
  return ForwardScratch<T>(nullptr, head_dim, v_head_dim, queries, copies).bytes;
}

/// How many bytes a Scratch of heads D and Dv takes.
template <class Scratch> std::size_t scratch_bytes(Index head_dim, Index v_head_dim) {
  return Scratch(nullptr, head_dim, v_head_dim).bytes;
}

/// The part of one block of keys x queries that the mask leaves alive.
struct BlockSpans {
  Span* queries_of;   // [keys / kGroup]: the queries that attend one of these keys
  Span* keys_of;      // [queries / kGroup]: the keys that one of these queries attends
  Span* vector_keys;  // [vectors of lanes]: the same for a vector of queries, in whole groups of keys
};

template <class T> struct BackwardScratch {
  Carver carver;
  Index head_dim, v_head_dim, width;            // queries of a tile
  Index panel = smaller(width, kWideLanes<T>);  // queries side by side in a panel
  Index row = width + Simd<T>::kLanes;          // not a power of two: such rows would share few cache sets
  Index lanes = round_up(width, kWideLanes<T>);
  T* q_panels = carver.array<T>(width * head_dim);       // [query_tile / panel][D][panel], scaled
  T* dout_panels = carver.array<T>(width * v_head_dim);  // [query_tile / panel][Dv][panel]
  T* lse2_high = carver.array<T>(width);                 // [query_tile], as the next two
  T* lse2_low = carver.array<T>(width);
  T* delta = carver.array<T>(width);
  T* p = carver.array<T>(kBackwardBlock * row);   // [kBackwardBlock][row]: P^T after dropout
  T* ds = carver.array<T>(kBackwardBlock * row);  // [kBackwardBlock][row]: dS^T, before scale
  // [kBackwardBlock][strip]: bias in; with a soft cap or a callback, dS of the bias out. And the callback's derivative.
  T* bias = carver.array<T>(kBackwardBlock * strip_lanes<T>());
  T* slopes = carver.array<T>(kBackwardBlock * strip_lanes<T>());
  // [strips][kBackwardBlock]
  std::uint32_t* lane_mask = carver.array<std::uint32_t>(width / strip_lanes<T>() * kBackwardBlock);
  std::uint32_t* kept = carver.array<std::uint32_t>(kBackwardBlock);  // dropout bits of one strip
  BlockSpans spans{carver.array<Span>(kBackwardBlock / kGroup), carver.array<Span>(lanes / kGroup),
      carver.array<Span>(lanes / Simd<T>::kLanes)};
  // [query_tile][D or Dv] and [backward_keys][D or Dv]: rows that cannot be read in place.
  T *q_rows = nullptr, *dout_rows = nullptr, *k_rows = nullptr, *v_rows = nullptr;
  bool nonfinite = false;  // q or dout of the tile hold NaN or infinity
  mutable Ahead ahead;     // rows of the bias of the next block, and of its gradient
  std::size_t bytes;

  /// For a tile of either Bits. `copies`: with room for all rows as T, for fewer queries.
  BackwardScratch(void* base, Index d, Index dv, bool copies)
      : BackwardScratch(base, d, dv, most_queries(copies ? StoredType::kBF16 : stored_as<T>(), d, dv)) {
    if (copies) {
      const Index keys = backward_keys<T>(d, dv);
      q_rows = carver.array<T>(width * d);
      dout_rows = carver.array<T>(width * dv);
      k_rows = carver.array<T>(keys * d);
      v_rows = carver.array<T>(keys * dv);
    }
    bytes = carver.used();
  }
  static Index most_queries(StoredType rows, Index d, Index dv) {
    return larger(query_tile_of<T>(rows, d, dv), sum_queries_of<T>(rows, d, dv));
  }
  BackwardScratch(void* base, Index d, Index dv, Index tile) : carver(base), head_dim(d), v_head_dim(dv), width(tile) {
    bytes = carver.used();
  }
};

/// Also enough for delta_rows, which packs two panels of Dv: out and dout.
template <class Scratch, class... Copies>
std::size_t backward_scratch_bytes(Index head_dim, Index v_head_dim, Copies... copies) {
  const std::size_t tile = Scratch(nullptr, head_dim, v_head_dim, copies...).bytes;
  const std::size_t rows = Scratch(nullptr, v_head_dim, v_head_dim, copies...).bytes;
  return larger(tile, rows);
}

}  // namespace
}  // namespace qkv
