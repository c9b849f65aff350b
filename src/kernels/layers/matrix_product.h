// The matrix product of linear layers, any size: attention's micro-kernel on operands that are packed into panels where
// they are large or transposed in memory (their contiguous axis is not the one that vectors need). Blocking as in Goto
// and van de Geijn 2008 (Anatomy of High-Performance Matrix Multiplication), with the roles of the caches exchanged: a
// block of A's rows stays in L1 while the panels of B stream from L2.
//
// Each element of C is a sum of blocks of depth in ascending order, each block one chain of FMAs. Where a block ends
// follows from the whole product's shape and strides alone, so a product may be cut along rows and columns without a
// change of bits.
#pragma once

#include "kernels/layers/few_rows.h"
#include "kernels/products/gemm.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

constexpr Index kPanel = strip_lanes<float>();  // columns of a panel of B
constexpr Index kPackedRows = 2 * kRows;        // rows of a panel of A: one cache line of a transposed A, on AVX-512
constexpr Index kInPlaceFloats = 16384;         // operands up to 64 KiB are read where they lie
constexpr Index kStackFloats = 8192;            // panels up to 32 KiB take the stack, not scratch memory
constexpr Index kPrefetchDepth = 128;           // C is prefetched where a block takes long enough for it to arrive

/// How a product is blocked and what is packed.
struct ProductBlocks {
  Index depth;    // of a block
  Index columns;  // of a block
  bool pack_a, pack_b;

  explicit ProductBlocks(const MatrixProduct<float>& t) {
    const bool a_transposed = t.a_row == 1 && t.a_depth != 1;
    // 8 rows of 512 are 16 KiB of L1, 256 columns of 512 are 512 KiB of L2. A transposed A is packed once per block of
    // columns, so these are wider and the depth is smaller.
    depth = t.invariant ? kInvariantDepth : a_transposed ? 256 : 512;
    columns = a_transposed ? 768 : t.invariant ? 1024 : 256;
    pack_a = a_transposed && t.depth * t.a_depth > 4 * kInPlaceFloats;
    pack_b = t.b_column != 1 || (t.rows > kPanel && t.depth * t.columns > kInPlaceFloats);
  }
  Index b_floats(const MatrixProduct<float>& t) const {
    return pack_b ? smaller(depth, t.depth) * round_up(smaller(columns, t.columns), kPanel) : 0;
  }
  Index a_floats(const MatrixProduct<float>& t) const { return pack_a ? smaller(depth, t.depth) * kPackedRows : 0; }
};

inline std::size_t matrix_product_scratch(const MatrixProduct<float>& t) {
  const ProductBlocks blocks(t);
  const int split = few_rows_split(t);
  const Index floats = split > 0 ? few_rows_floats(t, split) : blocks.b_floats(t) + blocks.a_floats(t);
  return floats <= kStackFloats ? 0 : static_cast<std::size_t>(floats) * sizeof(float);
}

/// panel[k][0..kPanel) = b[k][0..columns), zeros behind; b's columns lie side by side.
inline void pack_side_by_side(const float* b, Index b_row, Index depth, Index columns, float* panel) {
  constexpr int n = Simd<float>::kLanes;
  if (columns == kPanel) {
    for (Index k = 0; k < depth; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store<float>(panel + v * n, load<float>(b + v * n));
      b += b_row;
      panel += kPanel;
    }
    return;
  }
  for (Index k = 0; k < depth; ++k, b += b_row, panel += kPanel) {
    for (Index c = 0; c < kPanel; ++c) panel[c] = c < columns ? b[c] : 0.0f;
  }
}

/// Panels [columns / kPanel][depth][kPanel] of a block of B.
inline void pack_columns(const MatrixProduct<float>& t, const float* b, Index depth, Index columns, float* panels) {
  for (Index j = 0; j < columns; j += kPanel) {
    const Index width = smaller(kPanel, columns - j);
    float* panel = panels + j * depth;
    if (t.b_column == 1) {
      pack_side_by_side(b + j, t.b_row, depth, width, panel);
    } else {
      pack_transposed<float>(b + j * t.b_column, t.b_column, width, depth, 1.0f, panel, kPanel);
    }
  }
}

/// panel[k][0..kPackedRows) = a[k][0..rows) of a transposed A.
inline void pack_rows(const float* a, Index a_depth, Index depth, Index rows, float* panel) {
  constexpr int n = Simd<float>::kLanes;
  for (Index k = 0; k < depth; ++k, a += a_depth, panel += kPackedRows) {
    if (rows == kPackedRows) {
#pragma GCC unroll 4
      for (Index r = 0; r + n <= kPackedRows; r += n) store<float>(panel + r, load<float>(a + r));
      for (Index r = kPackedRows / n * n; r < kPackedRows; ++r) panel[r] = a[r];
    } else {
      for (Index r = 0; r < rows; ++r) panel[r] = a[r];
    }
  }
}

/// sums[r] += sum over k of a[k][r] of a transposed A: the bias gradient. Two chains of depth / 2 terms, wherever
/// in a block a row stands: a block begins where the cut of the product says.
inline void add_row_sums(const float* a, Index a_depth, Index depth, Index rows, float* sums) {
  using V = Simd<float>::V;
  constexpr int n = Simd<float>::kLanes;
  const auto add = [&](Index r, const auto& read) {
    V even{}, odd{};
    Index k = 0;
    for (; k + 2 <= depth; k += 2) {
      even += read(a + k * a_depth + r);
      odd += read(a + (k + 1) * a_depth + r);
    }
    if (k < depth) even += read(a + k * a_depth + r);
    return even + odd;
  };
  Index r = 0;
  for (; r + n <= rows; r += n)
    store<float>(sums + r, load<float>(sums + r) + add(r, [](const float* x) { return load<float>(x); }));
  if (r == rows) return;
  const int tail = static_cast<int>(rows - r);
  const V sum = add(r, [tail](const float* x) { return load_tail<float>(x, tail); });
  store_tail<float>(sums + r, load_tail<float>(sums + r, tail) + sum, tail);
}

/// The C of kRows rows that the next block will write.
inline void prefetch_block(const float* c, Index c_row) {
  for (Index r = 0; r < kRows; ++r, c += c_row) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(c + v * Simd<float>::kLanes, 1);
  }
}

/// C [rows, columns] of a block, rows <= kRows: p's B is the first panel or, with `panel` 0, B itself.
template <Store kStore> inline void product_of_rows(Product<float> p, Index rows, Index columns, Index panel) {
  for (Index j = 0; j < columns; j += kPanel) {
    if (p.depth >= kPrefetchDepth) prefetch_block(p.c, rows == kRows ? p.c_row : 0);
    product<float, kStore>(p, rows, smaller(kPanel, columns - j));
    p.b += panel == 0 ? kPanel : panel;
    p.c += kPanel;
    if constexpr (kStore == Store::kBias) p.factor += kPanel;
  }
}

inline void matrix_product(const MatrixProduct<float>& t, void* scratch) {
  alignas(64) float on_stack[kStackFloats];
  float* const b_panels = matrix_product_scratch(t) == 0 ? on_stack : static_cast<float*>(scratch);
  if (const int split = few_rows_split(t); split > 0) return few_rows(t, split, b_panels);
  float* const c = t.c != nullptr ? t.c : t.sums;
  const ProductBlocks blocks(t);
  float* const a_panel = b_panels + blocks.b_floats(t);
  const Index step = blocks.pack_a ? kPackedRows : kRows;
  for (Index j0 = 0; j0 < t.columns; j0 += blocks.columns) {
    const Index columns = smaller(blocks.columns, t.columns - j0);
    for (Index k0 = 0; k0 < t.depth; k0 += blocks.depth) {
      const Index depth = smaller(blocks.depth, t.depth - k0);
      const float* b = t.b + k0 * t.b_row + j0 * t.b_column;
      if (blocks.pack_b) pack_columns(t, b, depth, columns, b_panels);
      Product<float> p{.a = nullptr,
          .a_row = t.a_row,
          .a_depth = blocks.pack_a ? kPackedRows : t.a_depth,
          .b = blocks.pack_b ? b_panels : b,
          .b_row = blocks.pack_b ? kPanel : t.b_row,
          .c = nullptr,
          .c_row = t.c_row,
          .depth = depth,
          .factor = t.bias == nullptr ? nullptr : t.bias + j0};
      const Index panel = blocks.pack_b ? kPanel * depth : 0;
      for (Index i0 = 0; i0 < t.rows; i0 += step) {
        const Index rows = smaller(step, t.rows - i0);
        const float* a = t.a + i0 * t.a_row + k0 * t.a_depth;
        if (t.a_sums != nullptr && j0 == 0) add_row_sums(a, t.a_depth, depth, rows, t.a_sums + i0);
        if (blocks.pack_a) {
          pack_rows(a, t.a_depth, depth, rows, a_panel);
          a = a_panel;
        }
        for (Index r = 0; r < rows; r += kRows) {
          p.a = a + r * t.a_row;
          p.c = c + (i0 + r) * t.c_row + j0;
          const Index count = smaller<Index>(kRows, rows - r);
          if (t.sums != nullptr || k0 > 0) {
            product_of_rows<Store::kAdd>(p, count, columns, panel);
          } else if (t.bias != nullptr) {
            product_of_rows<Store::kBias>(p, count, columns, panel);
          } else {
            product_of_rows<Store::kSet>(p, count, columns, panel);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv
