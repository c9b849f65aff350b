// Products of attention on AMX tiles: a step of the depth is 32 numbers, in pairs as in bf16_terms.h. An AMX tile holds
// 16 rows x 16 columns of a block of C. Whole steps of A and B are loaded in place, the rest from copies padded with
// zeros. Every sum has the order of the instruction; Chain reproduces it where numbers are summed one by one. a_depth
// is always 2: a row's pairs lie side by side.
#pragma once

#include <utility>

#include "kernels/products/pair_terms.h"
#include "simd/amx.h"

#if defined(QKV_AMX)
namespace qkv {
namespace {

constexpr Index kAmxTileNumbers = 2 * kAmxTilePairs;

/// body(std::integral_constant<int, i>) for i < kCount: tile numbers are immediates of the instructions.
template <int kCount, class Body> inline __attribute__((always_inline)) void unrolled(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

template <> struct Terms<BFloat16> : PairTerms {
  static constexpr Index kStep = kAmxTileNumbers;
  static constexpr bool kAmxTiles = true;

  /// `rows` rows of C, kV vectors from `column` on.
  template <int kV, Store kStore, bool kTail>
  static void product(Product<BFloat16> p, Index rows, Index column, int tail) {
    constexpr int kHigh = kV > kVectors ? 1 : 2;  // four sums, so that each tile of A and of B serves two
    const AmxTiles registers;  // configured per product: a callback between two products may use tiles too
    p.b += column;
    p.c += column;
    if constexpr (kStore == Store::kBias) p.factor += column;
    const auto next = [&](Index done) {
      p.a += done * p.a_row;
      p.c += done * p.c_row;
      rows -= done;
    };
    for (; rows > (kHigh - 1) * kAmxTileRows; next(smaller(rows, kHigh * kAmxTileRows))) {
      block<kHigh, kV, kStore, kTail>(p, smaller(rows, kHigh * kAmxTileRows), tail);
    }
    if (rows > 0) block<1, kV, kStore, kTail>(p, rows, tail);
  }

 private:
  template <int kHigh, int kV, Store kStore, bool kTail>
  static void block(const Product<BFloat16>& p, Index rows, int tail) {
    alignas(64) float sums[kHigh * kAmxTileRows][kV * kAmxTilePairs];
    static_assert(kHigh * kV <= 4);
    unrolled<kHigh * kV>([](auto sum) { amx_tile_zero<sum>(); });
    const BFloat16* a = p.a;
    const std::uint32_t* b = p.b;
    for (Index left = p.depth; left > 0; left -= kAmxTileNumbers, a += kAmxTileNumbers, b += kAmxTilePairs * p.b_row) {
      const Index numbers = smaller(left, kAmxTileNumbers);
      unrolled<kHigh>([&](auto high) {
        load_rows<4 + high>(
            a + high * kAmxTileRows * p.a_row, p.a_row, smaller(kAmxTileRows, rows - high * kAmxTileRows), numbers);
      });
      unrolled<kV>([&](auto v) {
        const int columns = kTail && v == kV - 1 ? tail : static_cast<int>(kAmxTilePairs);
        load_columns<6 + v % 2>(b + v * kAmxTilePairs, p.b_row, (numbers + 1) / 2, columns);
        unrolled<kHigh>([](auto high) {
          amx_tile_add_pairs<high * kV + decltype(v)::value, 4 + high, 6 + decltype(v)::value % 2>();
        });
      });
    }
    unrolled<kHigh>([&](auto high) {
      unrolled<kV>([&](auto v) {
        amx_tile_store<high * kV + v>(&sums[high * kAmxTileRows][v * kAmxTilePairs], sizeof sums[0]);
      });
    });
    float* c = p.c;
    for (Index r = 0; r < rows; ++r, c += p.c_row) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        constexpr Index n = kAmxTilePairs;
        store_sum<float, kStore>(c + v * n, load<float>(&sums[r][v * n]),
            kStore == Store::kBias ? p.factor + v * n : p.factor, kTail && v == kV - 1, tail);
      }
    }
  }

  /// Rows of A; what lies past `rows` and `numbers` is 0.
  template <int kTile> static void load_rows(const BFloat16* a, Index stride, Index rows, Index numbers) {
    if (rows >= kAmxTileRows && numbers == kAmxTileNumbers) {
      amx_tile_load<kTile>(a, stride * static_cast<Index>(sizeof(BFloat16)));
      return;
    }
    alignas(64) std::uint32_t copy[kAmxTileRows][kAmxTilePairs] = {};
    for (Index r = 0; r < rows; ++r) store_u32(copy[r], load_pairs(a + r * stride, numbers));
    amx_tile_load<kTile>(copy, sizeof copy[0]);
  }

  /// Rows of B, a pair of its rows in each; what lies past `pairs` and `columns` is 0.
  template <int kTile> static void load_columns(const std::uint32_t* b, Index stride, Index pairs, int columns) {
    if (pairs == kAmxTilePairs && columns == kAmxTilePairs) {
      amx_tile_load<kTile>(b, stride * static_cast<Index>(sizeof(std::uint32_t)));
      return;
    }
    alignas(64) std::uint32_t copy[kAmxTilePairs][kAmxTilePairs] = {};
    for (Index k = 0; k < pairs; ++k) store_u32(copy[k], load_u32_tail(b + k * stride, columns));
    amx_tile_load<kTile>(copy, sizeof copy[0]);
  }
};

/// One sum in the order of amx_tile_add_pairs, over ascending pairs of the depth; skipped pairs add 0.
template <> class Chain<BFloat16> {
 public:
  void add(Index number, U32 a, U32 b) {
    if (number / kAmxTileNumbers != step_) {
      end_step();
      step_ = number / kAmxTileNumbers;
    }
    const U32 lower_half = U32{} + 0xFFFFu;
    lower_ = add_pairs(lower_, a & lower_half, b & lower_half);
    upper_ = add_pairs(upper_, a & ~lower_half, b & ~lower_half);
  }
  F32 total() {
    end_step();
    return sum_;
  }

 private:
  void end_step() {
    sum_ = flushed(sum_ + flushed(lower_ + upper_));
    lower_ = upper_ = F32{};
  }
  F32 sum_{}, lower_{}, upper_{};
  Index step_ = 0;
};

}  // namespace
}  // namespace qkv
#endif
