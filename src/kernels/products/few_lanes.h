// Products of a strip that holds few queries, one or the heads of a group: vectors lie along A instead of along the
// strip, so that no lane is idle. The same sums as gemm.h's, one chain of FMAs per element in ascending order, so that
// nothing but time depends on which of the two computes. A's rows are read as they are stored, and widened in
// registers; B and C are panels of a strip.
#pragma once

#include "kernels/decode/blocks.h"
#include "kernels/products/gemm.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

/// Up to so many queries this pays.
template <class T> constexpr int kFewLanes = Simd<T>::kLanes / 2;
/// Lanes that are computed together.
template <class T> constexpr int kLanesAtOnce = kFewLanes<T> < 4 ? kFewLanes<T> : 4;

/// Vectors of a row that are read at once: with a chain for each lane they fill the registers (gemm.h).
constexpr int kFewWide = kRows < 8 ? 2 : 4;

/// Rows a constant distance apart.
template <class S> struct EvenRows {
  const S* first;
  Index stride;

  const S* row(Index j) const { return first + j * stride; }
  EvenRows from(Index j) const {
    const S* start = row(j);
    asm("" : "+r"(start));  // or the compiler keeps a pointer for each row of a square, in memory
    return {start, stride};
  }
  SumOf<S> scale(Index) const { return 1; }
  void fetch(Index, Index) const {}
};

/// Rows listed one by one, scales of integers, and rows that a later product reads, which are fetched meanwhile.
template <class S, Fetch kTo> struct RowList {
  const void *const *rows, *const *later;
  const float* scales;
  bool into_l2;  // HeadKeys; where kTo asks

  const S* row(Index j) const { return static_cast<const S*>(rows[j]); }
  RowList from(Index j) const { return {rows + j, later + j, scales + j, into_l2}; }
  SumOf<S> scale(Index j) const { return scales[j]; }
  // Inline, or GCC may drop the call as one without effect.
  [[gnu::always_inline]] void fetch(Index j, Index d) const {
    qkv::fetch<kTo>(static_cast<const S*>(later[j]) + d, into_l2);
  }
};

/// Vectors that are read at once where two are (kReadsEvenOdd), and their numbers.
template <class S> constexpr int kLoadVectors = kReadsEvenOdd<S> ? 2 : 1;
template <class S> constexpr int kLoadNumbers = kLoadVectors<S> * Simd<SumOf<S>>::kLanes;

/// As many numbers of row j from column d on; of the last ones `left`. Pairs of bf16 stay one word.
template <class S, bool kTail, class Rows> inline __attribute__((always_inline)) typename Simd<SumOf<S>>::V load_stored(
    const Rows& rows, Index j, Index d, Index left) {
  const S* const p = rows.row(j) + d;
  const int count = static_cast<int>(left);
  if constexpr (kReadsEvenOdd<S>) {
    return as_f32(kTail ? load_words_tail(p, count) : load_words(p));
  } else {
    const auto x = kTail ? load_row_tail(p, count) : load_row(p);
    if constexpr (std::is_same_v<S, std::int8_t>) return x * splat<float>(rows.scale(j));
    return x;
  }
}

/// Numbers of even, or of odd, index of words of pairs.
inline F32 half_of_pairs(F32 words, bool odd) {
  return as_f32(odd ? as_u32(words) & 0xFFFF0000u : as_u32(words) << 16);
}

/// numbers[i][lane] = A[first + lane, k + i] for lanes < count and i < left, by a transpose in registers.
template <class S, class Rows> [[gnu::noinline, gnu::noclone]] void transpose_stored(
    const Rows& rows, Index first, Index count, Index k, Index left, SumOf<S>* numbers) {
  using T = SumOf<S>;
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const auto store_numbers = [numbers](V * square) __attribute__((always_inline)) {
    transpose_square<T>(square);
#pragma GCC unroll 32
    for (int i = 0; i < kLoadNumbers<S>; ++i) {
      V values = square[i / kLoadVectors<S>];
      if constexpr (kReadsEvenOdd<S>) values = half_of_pairs(values, i % 2 != 0);
      store<T>(numbers + i * n, values);
    }
  };
  V square[n];
  if (count >= n && left >= kLoadNumbers<S>) {
    const Rows a = rows.from(first);
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) {
      square[r] = load_stored<S, false>(a, r, k, left);
    }
    store_numbers(square);
  } else {
    V edge[n];
    for (Index r = 0; r < n; ++r) edge[r] = r < count ? load_stored<S, true>(rows, first + r, k, left) : V{};
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) square[r] = edge[r];
    store_numbers(square);
  }
}

/// sums[w][r] += sum_k A[m + w n + lane, k] * b(k, r), in ascending k, of `rows` rows. Blocks of n rows side by side
/// hide the latency of the FMAs.
template <class S, int kBlocks, int kR, class Rows, class B> inline __attribute__((always_inline)) void add_chains(
    const Rows& a, Index m, Index rows, Index depth, const B& b, typename Simd<SumOf<S>>::V (&sums)[kBlocks][kR]) {
  using T = SumOf<S>;
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, numbers = kLoadNumbers<S>;
  constexpr Index block_bytes = kBlocks * n * static_cast<Index>(sizeof(S)),
                  lines = block_bytes < 64 ? 1 : block_bytes / 64;
  alignas(64) T squares[kBlocks][numbers * n];
  for (Index k = 0; k < depth; k += numbers) {
    const Index left = smaller<Index>(numbers, depth - k);
    for (Index w = 0; w < kBlocks && w * n < rows; ++w) {
      transpose_stored<S>(a, m + w * n, rows - w * n, k, left, squares[w]);
    }
    for (Index i = 0; i < left; ++i) {
#pragma GCC unroll 4
      for (Index x = 0; x < lines; ++x) {  // spread over the FMAs: a burst of misses would stop the core
        const Index r = ((k + i) * lines + x) % (kBlocks * n);
        if (r < rows) a.fetch(m + r, k);
      }
      V values[kBlocks];
#pragma GCC unroll 4
      for (int w = 0; w < kBlocks; ++w) values[w] = load<T>(squares[w] + i * n);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const V factor = b(k + i, r);
#pragma GCC unroll 4
        for (int w = 0; w < kBlocks; ++w) sums[w][r] = fma(values[w], factor, sums[w][r]);
      }
    }
  }
}

/// C[m][lane] = sum_k A[m, k] * B[k][lane] for `lanes` <= kFewLanes lanes. Other lanes of the first vector become 0.
template <class S, class Rows> [[gnu::noinline, gnu::noclone]] void few_lanes_of_rows(
    const Rows& a, const Product<SumOf<S>>& p, Index rows, Index lanes) {
  using T = SumOf<S>;
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, some = kLanesAtOnce<T>, strip = strip_lanes<T>(), blocks = 2;
  for (Index m = 0; m < rows; m += blocks * n) {
    V square[blocks][n]{};
    for (Index first = 0; first < lanes; first += some) {
      V sums[blocks][some]{};
      const T* const panel = p.b + first;
      add_chains<S>(
          a, m, rows - m, p.depth, [panel](Index k, int r) { return splat<T>(panel[k * strip + r]); }, sums);
      for (int w = 0; w < blocks; ++w) {
#pragma GCC unroll 4
        for (int r = 0; r < some; ++r) square[w][first + r] = sums[w][r];
      }
    }
    for (int w = 0; w < blocks && m + w * n < rows; ++w) {
      transpose_square<T>(square[w]);  // [row][lane]
      T* c = p.c + (m + w * n) * p.c_row;
      for (Index r = 0; r < smaller<Index>(n, rows - m - w * n); ++r, c += p.c_row) store<T>(c, square[w][r]);
    }
    if (p.ahead != nullptr) fetch_ahead(*p.ahead);
  }
}

/// C[m][lane] = sum_k A[k, m] * B[k][lane] for `lanes` <= kFewLanes lanes, added to C unless `sets`; A's rows lie along
/// m, as vectors do. Other lanes of the first vector are set to 0, or stay.
template <class S, class Rows> [[gnu::noinline, gnu::noclone]] void few_lanes_of_columns(
    const Rows& a, const Product<SumOf<S>>& p, Index rows, Index lanes, bool sets) {
  using T = SumOf<S>;
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes, few = kLanesAtOnce<T>, wide = kFewWide, strip = strip_lanes<T>();
  constexpr int line = 64 / static_cast<int>(sizeof(S));  // of the cache
  for (Index m = 0; m < rows; m += wide * n) {
    V sums[wide][n];  // all are written below: GCC sets so much memory by a slow string instruction
    const Index left = smaller<Index>(wide * n, rows - m);
    for (Index first = 0; first < n; first += few) {
      V acc[wide][few]{};
      const auto add = [&](auto tail) __attribute__((always_inline)) {
        const T* b = p.b + first;
        for (Index k = 0; k < p.depth; ++k, b += strip) {
          if (first == 0) {
#pragma GCC unroll 4
            for (int d = 0; d < wide * n; d += line) a.fetch(k, m + d);
          }
          V values[wide];
#pragma GCC unroll 4
          for (int v = 0; v < wide; v += kLoadVectors<S>) {
            values[v] = load_stored<S, tail()>(
                a, k, m + v * n, larger<Index>(0, smaller<Index>(kLoadNumbers<S>, left - v * n)));
          }
          if constexpr (kReadsEvenOdd<S>) {
#pragma GCC unroll 2
            for (int v = 0; v < wide; v += 2) {
              values[v + 1] = half_of_pairs(values[v], true);
              values[v] = half_of_pairs(values[v], false);
            }
          }
#pragma GCC unroll 4
          for (int lane = 0; lane < few; ++lane) {
#pragma GCC unroll 4
            for (int v = 0; v < wide; ++v) acc[v][lane] = fma(values[v], splat<T>(b[lane]), acc[v][lane]);
          }
        }
      };
      if (first < lanes) left == wide* n ? add(std::false_type()) : add(std::true_type());
#pragma GCC unroll 4
      for (int lane = 0; lane < few; ++lane) {
        if constexpr (kReadsEvenOdd<S>) {
#pragma GCC unroll 2
          for (int v = 0; v < wide; v += 2) join_even_odd(acc[v][lane], acc[v + 1][lane]);
        }
#pragma GCC unroll 4
        for (int v = 0; v < wide; ++v) sums[v][first + lane] = acc[v][lane];
      }
    }
    for (int v = 0; v < wide; ++v) {
      transpose_square<T>(sums[v]);
      T* c = p.c + (m + v * n) * p.c_row;
      for (int r = 0; r < smaller<Index>(n, left - v * n); ++r, c += p.c_row) {
        store<T>(c, sets ? sums[v][r] : load<T>(c) + sums[v][r]);
      }
    }
    if (p.ahead != nullptr) fetch_ahead(*p.ahead);
  }
}

}  // namespace
}  // namespace qkv
