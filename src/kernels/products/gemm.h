// The one micro-kernel that all seven products of attention use:  C[m][n] (op) sum_k A[m, k] * B[k][n].
// A is read by broadcast through two strides, so that rows of K, V, P or columns of dS need no packing; B and C are
// rows of vectors. Each element is one chain of FMAs over k in ascending order, so no result depends on how a product
// is cut into blocks.
#pragma once

#include "kernels/ahead.h"
#include "qkv/types.h"
#include "simd/vec.h"

namespace qkv {
namespace {

enum class Store {
  kSet,      // C = acc
  kAdd,      // C = C + acc
  kBias,     // C = acc + factor[n]
  kScale,    // C = factor[0] * acc
  kScaleAdd  // C = C + factor[0] * acc
};

/// Rows x vectors of accumulators: enough independent chains to hide the FMA latency (4 cycles x 2 ports) within the
/// registers (AVX-512, NEON and SVE: 16 of 32 for C, AVX2 and SSE: 12 and 8 of 16). On NEON 24 of 32, as 8 x 3 or 6 x
/// 4, would load less for each FMA, but GCC 12 loads all of A first and spills in the loop.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRows = 8;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif
constexpr int kVectors = 2;
/// Queries of a strip, one SIMD lane each.
template <class T> constexpr int strip_lanes() { return kVectors * Simd<T>::kLanes; }

/// Vectors of a strip that hold `lanes` queries: a short strip does not use its second vector.
template <class T> constexpr int live_vectors(Index lanes) { return lanes > Simd<T>::kLanes ? kVectors : 1; }

/// How the micro-kernel multiplies elements of one storage type: the types of A, B and the sums; kNumbers, the numbers
/// of A that one multiply-add consumes; kStep, the numbers that are summed before the sum is rounded, so that only
/// whole steps of the depth may be skipped. Here one number at a time; bf16_terms.h multiplies pairs, amx_terms.h has
/// steps of 32 and its own product.
template <class T> struct Terms {
  using A = T;
  using B = T;
  using Sum = T;
  using V = typename Simd<T>::V;
  static constexpr Index kNumbers = 1;
  static constexpr Index kStep = 1;
  static constexpr bool kAmxTiles = false;
  static V splat_a(const T* a) { return splat<T>(*a); }
  static V splat_last(const T* a) { return splat<T>(*a); }  // where the depth ends within a step
  static V load_b(const T* b) { return load<T>(b); }
  static V load_b_tail(const T* b, int n) { return load_tail<T>(b, n); }
  static V multiply_add(V a, V b, V sum) { return fma(a, b, sum); }
  /// b with the numbers of its step that are not kept set to 0. A step of one number is only asked for when it is kept.
  static V keep(V b, bool, bool) { return b; }
};

/// One sum in the order of the products: call add() with ascending positions along the depth.
template <class T> class Chain {
 public:
  using V = typename Simd<typename Terms<T>::Sum>::V;
  template <class A, class B> void add(Index, A a, B b) { sum_ = Terms<T>::multiply_add(a, b, sum_); }
  V total() const { return sum_; }

 private:
  V sum_{};
};

template <class T> struct Product {
  using Sum = typename Terms<T>::Sum;
  const typename Terms<T>::A* a;
  Index a_row, a_depth;  // strides of A over m and over steps of k
  const typename Terms<T>::B* b;
  Index b_row;  // over steps of k
  Sum* c = nullptr;
  Index c_row = 0;
  Index depth;  // numbers of A
  const Sum* factor = nullptr;
  Ahead* ahead = nullptr;  // fetched between blocks; null: nothing
};

/// Spreads the lines over a call of `blocks` blocks.
inline void begin_ahead(Ahead* ahead, Index blocks) {
  if (ahead != nullptr) ahead->per_block = (ahead->lines + blocks - 1) / larger<Index>(blocks, 1);
}

/// The lines of one block, into L2. Not inline: products are everywhere.
[[gnu::noinline, maybe_unused]] void fetch_ahead(Ahead& a) {
  for (Index left = a.per_block; left > 0 && a.current < a.used;) {
    RowsAhead& rows = a.rows[a.current];
    const Index count = smaller(left, (rows.bytes - a.at + Ahead::kLine - 1) / Ahead::kLine);
    const std::byte* line = rows.row + a.at;
    for (Index n = 0; n < count; ++n, line += Ahead::kLine) __builtin_prefetch(line, 0, 2);
    left -= count;
    a.at += count * Ahead::kLine;
    if (a.at < rows.bytes) break;
    a.at = 0;
    rows.row += rows.stride;
    if (--rows.count == 0) ++a.current;
  }
}

/// The rest.
inline void fetch_rest(Ahead& a) {
  a.per_block = a.lines;
  fetch_ahead(a);
}

/// Stores one vector of C from its sum; with `partial` its first `tail` lanes only.
template <class Sum, Store kStore> inline __attribute__((always_inline)) void store_sum(
    Sum* target, typename Simd<Sum>::V sum, const Sum* factor, bool partial, int tail) {
  if constexpr (kStore == Store::kBias) {
    sum += partial ? load_tail<Sum>(factor, tail) : load<Sum>(factor);
  } else if constexpr (kStore == Store::kScale) {
    sum *= *factor;
  } else if constexpr (kStore != Store::kSet) {
    const auto old = partial ? load_tail<Sum>(target, tail) : load<Sum>(target);
    sum = kStore == Store::kAdd ? old + sum : fma(splat<Sum>(*factor), sum, old);
  }
  if (partial) {
    store_tail<Sum>(target, sum, tail);
  } else {
    store<Sum>(target, sum);
  }
}

/// One block of kR rows x kV vectors. Parameters are passed by value: a stride behind a reference would be reloaded
/// after each store.
template <class T, int kR, int kV, Store kStore, bool kTail> inline __attribute__((always_inline)) void product_block(
    const typename Terms<T>::A* a, Index a_row, Index a_depth, const typename Terms<T>::B* b, Index b_row,
    typename Terms<T>::Sum* c, Index c_row, Index depth, const typename Terms<T>::Sum* factor, int tail) {
  using Sum = typename Terms<T>::Sum;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  V acc[kR][kV];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) acc[r][v] = V{};
  }
  const auto step = [&](const auto& splat_a) __attribute__((always_inline)) {
    decltype(Terms<T>::load_b(b)) bv[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      bv[v] = kTail && v == kV - 1 ? Terms<T>::load_b_tail(b + v * n, tail) : Terms<T>::load_b(b + v * n);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      const auto av = splat_a(a + r * a_row);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Terms<T>::multiply_add(av, bv[v], acc[r][v]);
    }
    a += a_depth;
    b += b_row;
  };
  constexpr Index numbers = Terms<T>::kNumbers;
  for (; depth >= numbers; depth -= numbers) step([](const auto* p) { return Terms<T>::splat_a(p); });
  if (numbers > 1 && depth > 0) step([](const auto* p) { return Terms<T>::splat_last(p); });
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r, c += c_row) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      store_sum<Sum, kStore>(
          c + v * n, acc[r][v], kStore == Store::kBias ? factor + v * n : factor, kTail && v == kV - 1, tail);
    }
  }
}

/// `rows` rows of C, kV vectors from `column` on; of the last one `tail` lanes with kTail.
template <class T, int kV, Store kStore, bool kTail = false>
inline void product_rows(const Product<T>& p, Index rows, Index column, int tail = 0) {
  if constexpr (Terms<T>::kAmxTiles) {
    Terms<T>::template product<kV, kStore, kTail>(p, rows, column, tail);
  } else {
    constexpr int high = kV > kVectors ? kRows / 2 : kRows;
    const Index a_row = p.a_row, a_depth = p.a_depth, b_row = p.b_row, c_row = p.c_row, depth = p.depth;
    const auto* a = p.a;
    const auto* const b = p.b + column;
    const auto* const factor = kStore == Store::kBias ? p.factor + column : p.factor;
    auto* c = p.c + column;
    Ahead* const ahead = p.ahead;
    const auto steps = [&](auto height) __attribute__((always_inline)) {
      constexpr int kR = decltype(height)::value;
      for (; rows >= kR; rows -= kR) {
        product_block<T, kR, kV, kStore, kTail>(a, a_row, a_depth, b, b_row, c, c_row, depth, factor, tail);
        if constexpr (kR == high) {
          if (ahead != nullptr) fetch_ahead(*ahead);
        }
        a += kR * a_row;
        c += kR * c_row;
      }
    };
    steps(std::integral_constant<int, high>());
    if constexpr (high > 4) steps(std::integral_constant<int, 4>());
    if constexpr (high > 2) steps(std::integral_constant<int, 2>());
    steps(std::integral_constant<int, 1>());
  }
}

/// Vectors [first, first + count) of a strip, all of them or one: B and C are panels of it.
template <class T, Store kStore> inline void product_vectors(const Product<T>& p, Index rows, int first, int count) {
  if (count == kVectors) {
    product_rows<T, kVectors, kStore>(p, rows, 0);
  } else {
    product_rows<T, 1, kStore>(p, rows, first * Simd<typename Terms<T>::Sum>::kLanes);
  }
}

/// C [rows, columns]: any number of columns; memory past the last column is not touched.
template <class T, Store kStore> inline void product(const Product<T>& p, Index rows, Index columns) {
  constexpr int n = Simd<typename Terms<T>::Sum>::kLanes;
  Index column = 0;
  for (; column + kVectors * n <= columns; column += kVectors * n) product_rows<T, kVectors, kStore>(p, rows, column);
  if (column + n <= columns) {
    product_rows<T, 1, kStore>(p, rows, column);
    column += n;
  }
  if (column < columns) product_rows<T, 1, kStore, true>(p, rows, column, static_cast<int>(columns - column));
}

}  // namespace
}  // namespace qkv
