// The inner loops of decode.h: dot products of a few queries with four rows of K, and weighted sums of rows of V. Both
// prefetch the rows that come next. Rows of 16-bit types and of integers are widened in registers.
#pragma once

#include <utility>

#include "kernels/keys.h"
#include "simd/int8.h"
#include "simd/vec.h"
#include "simd/widen.h"

namespace qkv {
namespace {

/// Keys of the largest chunk, and the distance of rows of scores: a constant, so that addresses need no registers.
constexpr Index kChunkLimit = 256;

/// Runs of keys of a chunk that are read side by side. Four streams of prefetched rows read 17.5 GB/s where one
/// reads 14.
constexpr Index kRuns = 4;

/// Queries at a time: with four keys, or four vectors of V, they fill the registers (AVX-512, SVE and NEON have 32).
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kDecodeRows = 4;
#else
constexpr int kDecodeRows = 2;
#endif
constexpr int kValueVectors = 4;

/// Runs [first, last) of the four.
struct SomeRuns {
  Index first, last;
  bool into_l2 = false;  // where they are prefetched to: HeadKeys
  bool hold(Index i) const { return first <= i && i < last; }
};

/// Blocks of queries share the prefetching: the runs that rows [r, r + count) of `rows` prefetch.
inline SomeRuns share_of_runs(Index r, Index count, Index rows, bool into_l2) {
  if (count == rows) return {0, kRuns, into_l2};  // without divisions
  return {kRuns * r / rows, kRuns * (r + count) / rows, into_l2};
}

/// The type of sums of rows stored as T.
template <class T> using SumOf =
    std::conditional_t<std::is_same_v<T, std::int8_t> || std::is_same_v<T, Int4>, float, Accumulator<T>>;

/// Row g of each of the four runs of a chunk: a constant distance apart, or each where a list says.
template <class T> struct StridedRows {
  const T* first;
  Index between;
  const T* operator[](Index i) const { return first + i * between; }
};
template <class T> struct ListedRows {
  const T* const* rows;
  const T* operator[](Index i) const { return rows[i]; }
};

/// A chunk of K or V cut into four runs.
struct RunShape {
  Index run;     // keys of each
  Index ahead;   // rows between a prefetch and its use
  Index lo, hi;  // the live keys of the chunk
  bool whole = lo == 0 && hi == kRuns * run;

  /// The runs whose row g is live.
  SomeRuns live(Index g) const {
    if (whole) return {0, kRuns};
    const Index first = g < lo % run ? lo / run + 1 : lo / run;
    const Index last = g < hi % run ? hi / run + 1 : hi / run;
    return {first, last};
  }
  bool goes_on(Index g) const { return g + ahead < run; }
};

/// The rows of a chunk, and the rows that are read after it.
template <class T> struct Runs : RunShape {
  const T* rows;  // row g of run i: rows + (i * run + g) * stride
  const T* next;
  Index stride, next_stride;

  StridedRows<T> row(Index g) const { return {rows + g * stride, run * stride}; }
  StridedRows<T> soon(Index g) const {
    if (goes_on(g)) return row(g + ahead);
    return {next + (g + ahead - run) * next_stride, run * next_stride};
  }
  const T* key(Index j) const { return rows + j * stride; }
};

/// The same for rows listed one by one.
template <class T> struct ListedRuns : RunShape {
  const T* const* rows;  // row g of run i: rows[4 g + i]
  const T* const* next;

  ListedRows<T> row(Index g) const { return {rows + kRuns * g}; }
  ListedRows<T> soon(Index g) const {
    return goes_on(g) ? row(g + ahead) : ListedRows<T>{next + kRuns * (g + ahead - run)};
  }
  const T* key(Index j) const { return rows[kRuns * (j % run) + j / run]; }
};

template <class Chunk> struct ChunkRows {
  Chunk k, v;
};

/// Whether two vectors of a stored row are read as one, its numbers at even slots and those at odd ones
/// (load_even_odd).
template <class T> constexpr bool kReadsEvenOdd = std::is_same_v<T, BFloat16>;

/// A vector of a stored row, widened to the type of sums.
template <class T> inline __attribute__((always_inline)) typename Simd<SumOf<T>>::V load_row(const T* p) {
  if constexpr (std::is_same_v<T, SumOf<T>>) {
    return load<T>(p);
  } else {
    return load_widened(p);
  }
}
template <class T> inline __attribute__((always_inline)) typename Simd<SumOf<T>>::V load_row_tail(const T* p, int n) {
  if constexpr (std::is_same_v<T, SumOf<T>>) {
    return load_tail<T>(p, n);
  } else {
    return load_widened_tail(p, n);
  }
}

/// Prefetch distance within a run.
constexpr Index kAheadBytes = 2048;

/// Where a line is prefetched to: all caches; L2; L2 or all, as a group says.
enum class Fetch { kAll, kL2, kAsked };
template <Fetch kTo> inline __attribute__((always_inline)) void fetch(const void* p, bool into_l2 = false) {
  if (kTo == Fetch::kL2 || (kTo == Fetch::kAsked && into_l2)) return __builtin_prefetch(p, 0, 2);
  __builtin_prefetch(p, 0, 3);
}

/// Zen 4 wants L2 (core/cpu.h), so loops can be asked for it. Those that AVX-512 makes faster than memory have a copy
/// that does nothing else: asking at each line costs 16-bit rows a fifth.
#if defined(__AVX2__) || defined(__aarch64__)
constexpr Fetch kShared = Fetch::kAsked;
#else
constexpr Fetch kShared = Fetch::kAll;  // a lone block has no loops of its own then
#endif
#if defined(__AVX512F__)
template <class T> constexpr bool kHasL2Copy = std::is_same_v<T, float> || sizeof(T) == 2;
#else
template <class T> constexpr bool kHasL2Copy = false;
#endif

template <Fetch kTo> using FetchTo = std::integral_constant<Fetch, kTo>;

/// body(FetchTo) for rows stored as T: into L2 if asked and there is a copy of the loops for it, otherwise to kOther.
template <class T, Fetch kOther, class Body> inline void with_fetch(bool into_l2, const Body& body) {
  if constexpr (kHasL2Copy<T>) {
    if (into_l2) return body(FetchTo<Fetch::kL2>{});
  }
  body(FetchTo<kOther>{});
}

template <class T> inline void fetch_row(const T* row, Index width, bool into_l2) {
  const Index elements = std::is_same_v<T, Int4> ? row_elements(StoredType::kInt4, width) : width;
  for (Index x = 0; x < elements; x += 64 / static_cast<Index>(sizeof(T))) fetch<kShared>(row + x, into_l2);
}

// One step of horizontal sums, of a and b at once: of each four lanes two are sums of neighbours in a, two in b.
template <class T, int... kLane> inline typename Simd<T>::V add_pairs(
    typename Simd<T>::V a, typename Simd<T>::V b, std::integer_sequence<int, kLane...>) {
  constexpr int n = Simd<T>::kLanes, group = n < 4 ? n : 4, half = group / 2;
  return __builtin_shufflevector(a, b, (kLane / group * group + kLane % half * 2 + (kLane % group < half ? 0 : n))...) +
         __builtin_shufflevector(
             a, b, (kLane / group * group + kLane % half * 2 + 1 + (kLane % group < half ? 0 : n))...);
}
template <class T, int kHalf, int... kLane>
inline typename Simd<T>::V swap_lanes(typename Simd<T>::V x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kHalf)...);
}

/// sums[i] = the sum over the lanes of x[i], for four vectors. The order of additions is the same for each.
template <class T> inline __attribute__((always_inline)) void store_sums(const typename Simd<T>::V* x, T* sums) {
  constexpr int n = Simd<T>::kLanes;
  using Lanes = std::make_integer_sequence<int, n>;
  using V = typename Simd<T>::V;
  const V low = add_pairs<T>(x[0], x[1], Lanes{}), high = add_pairs<T>(x[2], x[3], Lanes{});
  if constexpr (n == 2) {
    store<T>(sums, low);
    store<T>(sums + 2, high);
  } else {
    V sum = add_pairs<T>(low, high, Lanes{});
    if constexpr (n >= 16) sum += swap_lanes<T, 8>(sum, Lanes{});
    if constexpr (n >= 8) sum += swap_lanes<T, 4>(sum, Lanes{});
    __builtin_memcpy(sums, &sum, 4 * sizeof(T));
  }
}

template <class T> inline T largest_lane(typename Simd<T>::V x) {
  constexpr int n = Simd<T>::kLanes;
  using Lanes = std::make_integer_sequence<int, n>;
  if constexpr (n >= 16) x = max_or_second(swap_lanes<T, 8>(x, Lanes{}), x);
  if constexpr (n >= 8) x = max_or_second(swap_lanes<T, 4>(x, Lanes{}), x);
  if constexpr (n >= 4) x = max_or_second(swap_lanes<T, 2>(x, Lanes{}), x);
  return max_or_second(swap_lanes<T, 1>(x, Lanes{}), x)[0];
}

/// Loads after it stay after it: GCC 12 would load for several steps at once and spill sums for it.
inline __attribute__((always_inline)) void keep_order() { asm volatile("" ::: "memory"); }

/// scores[r][i] = sum_d q[r][d] * k[i][d] for kR queries and the live keys i of 4; all 4 are written. Of q the first
/// vectors of the kR rows follow each other, then their second ones: one pointer reads them all. Whole pairs of vectors
/// hold numbers of even, then of odd slots where kReadsEvenOdd. Prefetches the rows `fetched` of the four rows `soon`,
/// all where the block is alone (not kShared).
template <class T, int kR, Fetch kTo, class Rows>
inline __attribute__((always_inline)) void dot_block(const SumOf<T>* q, const Rows& k, const SomeRuns& live,
    Index head_dim, const Rows& soon, const SomeRuns& fetched, SumOf<T>* scores) {
  using Sum = SumOf<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  constexpr Index wide = kReadsEvenOdd<T> ? 2 * n : n, line = larger<Index>(64 / static_cast<Index>(sizeof(T)), wide);
  const T *key_rows[kRuns] = {k[0], k[1], k[2], k[3]}, *const soon_rows[kRuns] = {soon[0], soon[1], soon[2], soon[3]};
  if (live.last - live.first < kRuns) {  // a masked key is not read; a live one is read instead
    for (Index i = 0; i < kRuns; ++i) key_rows[i] = k[larger(live.first, smaller(i, live.last - 1))];
  }
  V acc[kR][kRuns];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) acc[r][i] = V{};
  }
  const auto fetch_line = [&](Index d) __attribute__((always_inline)) {
    if (d % line != 0) return;
    if constexpr (kTo != kShared) {
#pragma GCC unroll 4
      for (Index i = 0; i < kRuns; ++i) fetch<kTo>(soon_rows[i] + d);
    } else {
      for (Index i = fetched.first; i < fetched.last; ++i) fetch<kTo>(soon_rows[i] + d, fetched.into_l2);
    }
  };
  const auto add = [&](Index d, const V* key) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const V query = load<Sum>(q + kR * d + r * n);
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) acc[r][i] = fma(query, key[i], acc[r][i]);
    }
  };
  const auto step = [&](Index d) __attribute__((always_inline)) {
    V key[kRuns];
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) {
      if constexpr (kReadsEvenOdd<T>) {
        key[i] = load_even_odd(key_rows[i] + d).even;
      } else {
        key[i] = load_row(key_rows[i] + d);
      }
    }
    add(d, key);
    keep_order();
    if constexpr (kReadsEvenOdd<T>) {
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) key[i] = load_even_odd(key_rows[i] + d).odd;
      add(d + n, key);
      keep_order();
    }
  };
  Index d = 0;
  for (; kTo != kShared && d + line <= head_dim; d += line) {
    fetch_line(d);
#pragma GCC unroll 4
    for (Index x = 0; x < line; x += wide) step(d + x);
  }
  for (; d + wide <= head_dim; d += wide) {
    fetch_line(d);
    step(d);
  }
  for (; d < head_dim; d += n) {
    fetch_line(d);
    const int rest = static_cast<int>(smaller<Index>(n, head_dim - d));
    V key[kRuns];
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) key[i] = load_row_tail(key_rows[i] + d, rest);
    add(d, key);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) store_sums<Sum>(acc[r], scores + r * kChunkLimit);
}

/// out[r][d] = out[r][d] * factor[r] + sum over g in [begin, end) and i of weights[r][4 g + i] * v(g, i)[d], for kR
/// rows and kV vectors at column d0; `rest` lanes of the last one, 0: all. Masked rows of V are not read.
template <class T, int kR, Fetch kTo, int kV, bool kTail, class Chunk>
inline __attribute__((always_inline)) void value_block(const SumOf<T>* weights, const Chunk& v, Index begin, Index end,
    Index d0, SumOf<T>* out, Index out_row, const SumOf<T>* factor, const SomeRuns& fetched, int rest) {
  using Sum = SumOf<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  constexpr Index line = 64 / static_cast<Index>(sizeof(T));
  constexpr bool pairs = kReadsEvenOdd<T> && kV % 2 == 0;
  V acc[kR][kV];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kV; ++x) acc[r][x] = V{};
  }
  const auto add = [&](const T* row, const Sum* weight) __attribute__((always_inline)) {
    V value[kV];
    if constexpr (pairs) {
#pragma GCC unroll 4
      for (int x = 0; x < kV; x += 2) {
        const EvenOdd both = load_even_odd(row + x * n);
        value[x] = both.even;
        value[x + 1] = both.odd;
      }
    } else {
#pragma GCC unroll 8
      for (int x = 0; x < kV; ++x) value[x] = kTail ? load_row_tail(row + x * n, rest) : load_row(row + x * n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const V w = splat<Sum>(weight[r * kChunkLimit]);
#pragma GCC unroll 8
      for (int x = 0; x < kV; ++x) acc[r][x] = fma(w, value[x], acc[r][x]);
    }
  };
  for (Index g = begin; g < end; ++g) {
    const auto rows = v.row(g);
    const Sum* weight = weights + kRuns * g;
    const SomeRuns live = v.live(g);
    if (live.first == 0 && live.last == kRuns) {
      const auto soon = v.soon(g);
#pragma GCC unroll 4
      for (Index i = 0; i < kRuns; ++i) {
        if (kTo != kShared || fetched.hold((i - g) & (kRuns - 1))) {  // in turn, so that the runs advance together
#pragma GCC unroll 8
          for (Index x = 0; x < kV * n; x += line) fetch<kTo>(soon[i] + d0 + x, fetched.into_l2);
        }
        add(rows[i] + d0, weight + i);
        keep_order();
      }
    } else {
      for (Index i = live.first; i < live.last; ++i) add(rows[i] + d0, weight + i);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
    const V f = splat<Sum>(factor[r]);
    if constexpr (pairs) {
#pragma GCC unroll 4
      for (int x = 0; x < kV; x += 2) join_even_odd(acc[r][x], acc[r][x + 1]);
    }
#pragma GCC unroll 8
    for (int x = 0; x < kV; ++x) {
      Sum* slot = out + r * out_row + d0 + x * n;
      store<Sum>(slot, fma(load<Sum>(slot), f, acc[r][x]));
    }
  }
}

/// All columns of kR rows.
template <class T, int kR, Fetch kTo, class Chunk> inline void value_rows(const SumOf<T>* weights, const Chunk& v,
    Index begin, Index end, Index width, SumOf<T>* out, Index out_row, const SumOf<T>* factor,
    const SomeRuns& fetched) {
  constexpr int n = Simd<SumOf<T>>::kLanes, wide = kR == 1 ? 2 * kValueVectors : kValueVectors;
  Index d = 0;
  for (; d + wide * n <= width; d += wide * n) {
    value_block<T, kR, kTo, wide, false>(weights, v, begin, end, d, out, out_row, factor, fetched, 0);
  }
  for (; d + n <= width; d += n) {
    value_block<T, kR, kTo, 1, false>(weights, v, begin, end, d, out, out_row, factor, fetched, 0);
  }
  if (d < width) {
    value_block<T, kR, kTo, 1, true>(
        weights, v, begin, end, d, out, out_row, factor, fetched, static_cast<int>(width - d));
  }
}

/// Calls body(std::integral_constant<int, kR>, FetchTo, first row) for blocks of rows stored as T, the largest first.
template <class T, class Body>
inline __attribute__((always_inline)) void for_row_blocks(Index rows, bool into_l2, const Body& body) {
  const auto block = [&](auto count, Index r) __attribute__((always_inline)) {
    if constexpr (kHasL2Copy<T>) {
      if (rows == count && into_l2) return body(count, FetchTo<Fetch::kL2>{}, r);
    }
    if (!std::is_same_v<T, Int4> && rows == count && !into_l2) return body(count, FetchTo<Fetch::kAll>{}, r);
    body(count, FetchTo<kShared>{}, r);
  };
  Index r = 0;
  for (; r + kDecodeRows <= rows; r += kDecodeRows) block(std::integral_constant<int, kDecodeRows>{}, r);
  if constexpr (kDecodeRows > 2 && !std::is_same_v<T, Int4>) {
    for (; r + 2 <= rows; r += 2) block(std::integral_constant<int, 2>{}, r);
  }
  for (; r < rows; ++r) block(std::integral_constant<int, 1>{}, r);
}

}  // namespace
}  // namespace qkv
