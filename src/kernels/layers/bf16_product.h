// The matrix product of linear layers on pairs of bf16: operands packed into words of two numbers of the depth, sums in
// float, results rounded once.
//
// Each element of C is one chain over the whole depth, or, where it is added to sums, a sum of chains of kSumDepth
// numbers. So a product may be cut along rows and columns without a change of bits.
#pragma once

#include "kernels/carver.h"
#include "kernels/layers/bf16_few_rows.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

constexpr Index kBf16Panel = strip_lanes<float>();  // columns of a panel of B
constexpr Index kBf16Rows = 16;               // rows of C that are computed together, and of a panel of a transposed A
constexpr Index kBf16Bytes = Index{1} << 19;  // of panels of B: they stay in L2
constexpr Index kSumDepth = 256;              // wide blocks of columns: a transposed A is packed once for each

/// How a product is blocked: B in panels [columns / kBf16Panel][pairs of depth][kBf16Panel] of words, a transposed A in
/// words.
struct Bf16Blocks {
  Index depth, columns;
  bool a_transposed;

  explicit Bf16Blocks(const MatrixProduct<BFloat16>& t) {
    a_transposed = t.a_row == 1 && t.a_depth != 1;
    depth = t.sums != nullptr ? smaller(kSumDepth, t.depth) : t.depth;
    const Index fit = kBf16Bytes / (larger<Index>(depth, 1) * static_cast<Index>(sizeof(BFloat16)));
    columns = smaller(round_up(t.columns, kBf16Panel), larger(fit / kBf16Panel, Index{1}) * kBf16Panel);
  }
  /// Pairs of the depth, whole steps of it.
  Index pairs() const { return round_up(depth, 2 * Simd<float>::kLanes) / 2; }
};

struct Bf16Memory {
  std::uint32_t *b, *a;

  std::size_t carve(std::byte* base, const Bf16Blocks& blocks) {
    Carver carver(base);
    b = carver.array<std::uint32_t>(blocks.pairs() * blocks.columns);
    a = carver.array<std::uint32_t>(blocks.a_transposed ? blocks.pairs() * kBf16Rows : 0);
    return carver.used();
  }
};

inline std::size_t bf16_product_scratch(const MatrixProduct<BFloat16>& t) {
  return is_few_bf16_rows(t) ? 0 : Bf16Memory{}.carve(nullptr, Bf16Blocks(t));
}

/// sums[r] += sum over k of a[k][r] of a transposed A. One chain.
inline void add_bf16_row_sums(const BFloat16* a, Index a_depth, Index depth, Index rows, float* sums) {
  const U32 ones = U32{} + 0x3F803F80u;
  for (Index r = 0; r < rows; r += Simd<float>::kLanes) {
    const Index width = smaller<Index>(Simd<float>::kLanes, rows - r);
    F32 sum{};
    for (Index k = 0; k < depth; k += 2) {
      const BFloat16* const lower = a + k * a_depth + r;
      sum = add_pairs(sum, pair_up(lower, width, lower + a_depth, k + 1 < depth ? width : 0), ones);
    }
    const int tail = static_cast<int>(width);
    store_tail<float>(sums + r, load_tail<float>(sums + r, tail) + sum, tail);
  }
}

/// C [rows, columns] of a block in panels of B, rows <= kBf16Rows. `first` of C.
inline void bf16_product_of_rows(const MatrixProduct<BFloat16>& t, Product<BFloat16> p, Index rows, Index columns,
    Index pairs, Index row, Index column) {
  alignas(64) float sums[kBf16Rows * kBf16Panel];
  for (Index j = 0; j < columns; j += kBf16Panel, p.b += pairs * kBf16Panel) {
    const Index width = smaller(kBf16Panel, columns - j);
    if (t.sums != nullptr) {
      p.c = t.sums + row * t.c_row + column + j;
      p.c_row = t.c_row;
      product<BFloat16, Store::kAdd>(p, rows, width);
      continue;
    }
    p.c = sums;
    p.c_row = kBf16Panel;
    product<BFloat16, Store::kSet>(p, rows, width);
    BFloat16* c = t.c + row * t.c_row + column + j;
    for (Index r = 0; r < rows; ++r, c += t.c_row) {
      for (Index v = 0; v < width; v += Simd<float>::kLanes) {
        const Index count = smaller<Index>(Simd<float>::kLanes, width - v);
        F32 sum = load<float>(sums + r * kBf16Panel + v);
        if (t.bias != nullptr) sum += load_tail<float>(t.bias + column + j + v, static_cast<int>(count));
        store_rounded(c + v, sum, count);
      }
    }
  }
}

inline void bf16_product(const MatrixProduct<BFloat16>& t, void* scratch) {
  if (is_few_bf16_rows(t)) return t.wide_b != nullptr ? bf16_few_rows(t, t.wide_b) : bf16_few_rows(t, t.b);
  const Bf16Blocks blocks(t);
  Bf16Memory memory;
  memory.carve(static_cast<std::byte*>(scratch), blocks);
  for (Index j0 = 0; j0 < t.columns; j0 += blocks.columns) {
    const Index columns = smaller(blocks.columns, t.columns - j0);
    for (Index k0 = 0; k0 < t.depth; k0 += blocks.depth) {
      const Index depth = smaller(blocks.depth, t.depth - k0), pairs = pairs_of(depth);
      for (Index j = 0; j < columns; j += kBf16Panel) {
        const Index first = k0 * t.b_row + (j0 + j) * t.b_column, width = smaller(kBf16Panel, columns - j);
        const auto pack = [&](const auto* b) {
          if (t.b_row == 1) {
            pack_pairs(b, t.b_column, width, depth, kBf16Panel, memory.b + j * pairs);
          } else {
            pair_up_rows(b, t.b_row, depth, width, kBf16Panel, memory.b + j * pairs);
          }
        };
        t.wide_b != nullptr ? pack(t.wide_b + first) : pack(t.b + first);
      }
      Product<BFloat16> p{
          .a = nullptr, .a_row = t.a_row, .a_depth = 2, .b = memory.b, .b_row = kBf16Panel, .depth = depth};
      for (Index i0 = 0; i0 < t.rows; i0 += kBf16Rows) {
        const Index rows = smaller(kBf16Rows, t.rows - i0);
        p.a = t.a + i0 * t.a_row + k0 * t.a_depth;
        if (t.a_sums != nullptr && j0 == 0) add_bf16_row_sums(p.a, t.a_depth, depth, rows, t.a_sums + i0);
        if (blocks.a_transposed) {
          if constexpr (Terms<BFloat16>::kAmxTiles) {
            pair_up_columns(p.a, t.a_depth, depth, rows, blocks.pairs(), memory.a);
            p.a_row = 2 * blocks.pairs();
          } else {
            pair_up_rows(p.a, t.a_depth, depth, rows, kBf16Rows, memory.a);
            p.a_row = 2;
            p.a_depth = 2 * kBf16Rows;
          }
          p.a = reinterpret_cast<const BFloat16*>(memory.a);
        }
        bf16_product_of_rows(t, p, rows, columns, pairs, i0, j0);
      }
    }
  }
}

}  // namespace
}  // namespace qkv
#endif
