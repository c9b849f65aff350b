// y = x W^T for so few rows of x that transposing W would cost more than the product: W is read once, in place. Lanes
// hold the rows of x; where these fill only a part of a vector, lane r * kSplit + i sums the terms of row r whose index
// is i modulo kSplit. An invariant product sums in matrix_product.h's blocks of depth, one chain a number: a row then
// has the bits that it has among many. Of up to kChainRows rows vectors lie along y and squares of W are transposed in
// registers, of more the lanes are rows.
#pragma once

#include "kernels/layers/params.h"
#include "kernels/products/few_lanes.h"

namespace qkv {
namespace {

/// Columns of y that are computed at once: independent chains that hide the latency of an FMA.
constexpr int kFewColumns = Simd<float>::kLanes < 8 ? Simd<float>::kLanes : 8;

/// The depth of matrix_product.h's blocks in an invariant product: shorter chains than of others, for their accuracy.
constexpr Index kInvariantDepth = 128;

/// Rows of an invariant product that are computed with vectors along y.
constexpr Index kChainRows = Simd<float>::kLanes / 4;

constexpr Index kL2Floats = 1 << 18;  // a W of 1 MiB is read from L2
constexpr Index kRowAhead = 256;      // 1 KiB; 512 the same, 64 a tenth slower (Zen 5, 2026-11-26)

/// kSplit: 1, 2 or all lanes, which one load can repeat over the lanes. 0: too many rows, or a depth that is not
/// divisible. A function of the whole product, so that its parts are bit-identical.
inline int few_rows_split(const MatrixProduct<float>& t) {
  constexpr int n = Simd<float>::kLanes;
  if (t.all_rows > n || t.b_row != 1 || t.b_column == 1 || t.c == nullptr) return 0;
  if (t.invariant) return 1;
  const int split = t.all_rows == 1 ? n : 2 * t.all_rows <= n ? 2 : 1;
  return t.depth % split == 0 ? split : 0;
}

inline Index few_rows_floats(const MatrixProduct<float>& t, int split) { return t.depth / split * Simd<float>::kLanes; }

/// kSplit floats, repeated over the lanes.
template <int kSplit> inline typename Simd<float>::V repeat(const float* p) {
  if constexpr (kSplit == 1) {
    return splat<float>(*p);
  } else if constexpr (kSplit == 2) {
    double pair;  // only its bits count
    __builtin_memcpy(&pair, p, sizeof pair);
    return reinterpret_cast<typename Simd<float>::V>(splat<double>(pair));
  } else {
    return load<float>(p);
  }
}

/// sums[j] = the lanes' sums for columns j < kColumns: rows of W, `stride` apart.
template <int kSplit, int kColumns> inline void few_rows_block(
    const float* w, Index stride, const float* panel, Index steps, typename Simd<float>::V* sums) {
  using V = typename Simd<float>::V;
  V acc[kColumns];
#pragma GCC unroll 16
  for (int j = 0; j < kColumns; ++j) acc[j] = V{};
  for (; steps > 0; --steps) {
    const V x = load<float>(panel);
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) acc[j] = fma(repeat<kSplit>(w + j * stride), x, acc[j]);
    w += kSplit;
    panel += Simd<float>::kLanes;
  }
#pragma GCC unroll 16
  for (int j = 0; j < kColumns; ++j) sums[j] = acc[j];
}

/// sums[j] for columns j < width, 0 behind.
template <int kSplit> inline void few_rows_columns(
    const float* w, Index stride, const float* panel, Index steps, int width, typename Simd<float>::V* sums) {
  int j = 0;
  for (; j + kFewColumns <= width; j += kFewColumns) {
    few_rows_block<kSplit, kFewColumns>(w + j * stride, stride, panel, steps, sums + j);
  }
  for (; j < width; ++j) few_rows_block<kSplit, 1>(w + j * stride, stride, panel, steps, sums + j);
  for (; j < Simd<float>::kLanes; ++j) sums[j] = typename Simd<float>::V{};
}

/// sums[j] += the sums of each further block of the depth. Not inline: of invariant products alone.
template <int kSplit> [[gnu::noinline]] void add_few_rows_blocks(const float* w, Index stride, const float* panel,
    Index block, Index steps, int width, typename Simd<float>::V* sums) {
  constexpr int n = Simd<float>::kLanes;
  typename Simd<float>::V some[n];
  for (Index k0 = block; k0 < steps; k0 += block) {
    few_rows_columns<kSplit>(w + k0 * kSplit, stride, panel + k0 * n, smaller(block, steps - k0), width, some);
#pragma GCC unroll 16
    for (int j = 0; j < n; ++j) sums[j] += some[j];
  }
}

template <int kSplit> inline void few_rows_product(const MatrixProduct<float>& t, float* panel) {
  using V = typename Simd<float>::V;
  constexpr int n = Simd<float>::kLanes;
  const Index steps = t.depth / kSplit;
  // panel[k][r * kSplit + i] = x[r, k * kSplit + i]
  if constexpr (kSplit == 1) {
    pack_transposed<float>(t.a, t.a_row, t.rows, t.depth, 1.0f, panel, n);
  } else {
    for (Index k = 0; k < steps; ++k) {
      float* to = panel + k * n;
      for (Index r = 0; r < n / kSplit; ++r) {
        if (r < t.rows) {
          __builtin_memcpy(to + r * kSplit, t.a + r * t.a_row + k * kSplit, kSplit * sizeof(float));
        } else {
          __builtin_memset(to + r * kSplit, 0, kSplit * sizeof(float));
        }
      }
    }
  }
  const Index block = t.invariant ? kInvariantDepth : steps;
  for (Index j0 = 0; j0 < t.columns; j0 += n) {
    const int width = static_cast<int>(smaller<Index>(n, t.columns - j0));
    const float* w = t.b + j0 * t.b_column;
    V square[n];
    few_rows_columns<kSplit>(w, t.b_column, panel, smaller(block, steps), width, square);
    V bias = t.bias == nullptr ? V{} : width == n ? load<float>(t.bias + j0) : load_tail<float>(t.bias + j0, width);
    if (block < steps) {
      for (int j = 0; t.bias != nullptr && j < width; ++j) square[j] += splat<float>(t.bias[j0 + j]);
      bias = -V{};  // adding -0 changes nothing
      add_few_rows_blocks<kSplit>(w, t.b_column, panel, block, steps, width, square);
    } else if (t.invariant && t.bias == nullptr) {
      bias = -V{};
    }
    transpose_square<float>(square);  // [lane][column]
    for (Index r = 0; r < t.rows; ++r) {
      V sum = square[r * kSplit];
#pragma GCC unroll 16
      for (int i = 1; i < kSplit; ++i) sum += square[r * kSplit + i];
      float* y = t.c + r * t.c_row + j0;
      width == n ? store<float>(y, sum + bias) : store_tail<float>(y, sum + bias, width);
    }
  }
}

/// sums[b][r] += sum over [k0, k0 + depth) of W[j0 + b n + lane, k] x[r][k], in ascending k; `ahead`: what lies so many
/// numbers behind is fetched.
template <int kR, int kBlocks, Fetch kTo>
inline __attribute__((always_inline)) void add_row_chains(const EvenRows<float>& w, Index j0, Index columns,
    Index depth, Index ahead, const float* const* x, typename Simd<float>::V (*sums)[kR]) {
  using V = typename Simd<float>::V;
  constexpr int n = Simd<float>::kLanes;
  int blocks = static_cast<int>(smaller<Index>(kBlocks, (columns + n - 1) / n));
  asm("" : "+r"(blocks));  // unrolled, the loop over blocks would be twice the code
  for (Index k = 0; k < depth; k += n) {
    for (int b = 0; b < blocks; ++b) {
      const Index first = j0 + b * n, count = columns - b * n, left = smaller<Index>(n, depth - k);
      V chains[kR];
      for (int r = 0; r < kR; ++r) chains[r] = sums[b][r];
      const auto step = [&](Index i, V values) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int r = 0; r < kR; ++r) chains[r] = fma(values, splat<float>(x[r][k + i]), chains[r]);
      };
      if (count >= n && left == n) {
        const EvenRows<float> some = w.from(first);
        V square[n];
#pragma GCC unroll 16
        for (int r = 0; r < n; ++r) {
          square[r] = load<float>(some.row(r) + k);
          if (ahead != 0) fetch<kTo>(some.row(r) + k + ahead);
        }
        transpose_square<float>(square);
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) step(i, square[i]);
      } else {
        alignas(64) float edge[n * n];
        transpose_stored<float>(w, first, count, k, left, edge);
        for (Index i = 0; i < left; ++i) step(i, load<float>(edge + i * n));
      }
      for (int r = 0; r < kR; ++r) sums[b][r] = chains[r];
    }
  }
}

/// y of at most kR rows, the last ones repeated; one chain a number and block of the depth. A W that does not fit L2 is
/// read by one block of rows at a time, and fetched.
template <int kR, int kBlocks, Fetch kTo> [[gnu::noinline]] void rows_of_chains(const MatrixProduct<float>& t) {
  using V = typename Simd<float>::V;
  constexpr int n = Simd<float>::kLanes;
  const bool in_l2 = t.depth * t.columns <= kL2Floats;
  const Index step = in_l2 ? kBlocks * n : n;
  const float* x[kR];
  for (int r = 0; r < kR; ++r) x[r] = t.a + smaller<Index>(r, t.rows - 1) * t.a_row;
  for (Index j0 = 0; j0 < t.columns; j0 += step) {
    const Index columns = smaller(step, t.columns - j0);
    V totals[kBlocks][kR];
    for (Index k0 = 0; k0 == 0 || k0 < t.depth; k0 += kInvariantDepth) {
      V sums[kBlocks][kR]{};
      const float* from[kR];
      for (int r = 0; r < kR; ++r) from[r] = x[r] + k0;
      add_row_chains<kR, kBlocks, kTo>({t.b + k0, t.b_column}, j0, columns, smaller(kInvariantDepth, t.depth - k0),
          in_l2 ? 0 : kRowAhead, from, sums);
      for (int b = 0; b * n < columns; ++b) {
        const int width = static_cast<int>(smaller<Index>(n, columns - b * n));
        for (int r = 0; r < kR; ++r) {
          V sum = sums[b][r];
          if (k0 > 0) sum = totals[b][r] + sum;
          if (k0 == 0 && t.bias != nullptr) sum += load_tail<float>(t.bias + j0 + b * n, width);
          totals[b][r] = sum;
        }
      }
    }
    for (int b = 0; b * n < columns; ++b) {
      const int width = static_cast<int>(smaller<Index>(n, columns - b * n));
      for (Index r = 0; r < t.rows; ++r) store_tail<float>(t.c + r * t.c_row + j0 + b * n, totals[b][r], width);
    }
  }
}

/// `split` as few_rows_split gave it, above 0; panel of few_rows_floats.
inline void few_rows(const MatrixProduct<float>& t, int split, float* panel) {
  constexpr int n = Simd<float>::kLanes;
  if (t.invariant && t.rows <= kChainRows) {
    return with_fetch<float, Fetch::kAll>(
        t.into_l2, [&](auto to) { t.rows == 1 ? rows_of_chains<1, 2, to>(t) : rows_of_chains<kChainRows, 1, to>(t); });
  }
  if (split == 1) return few_rows_product<1>(t, panel);
  if (split == 2) return few_rows_product<2>(t, panel);
  few_rows_product<n>(t, panel);
}

}  // namespace
}  // namespace qkv
