// AMX's tiles against a model in double, and products of any shape on them against the same sums number by number: the
// library's model on any CPU with AVX-512, the instructions themselves where the CPU has them (another build of this
// file).
#include <gtest/gtest.h>

#include <vector>

#include "bf16/pair_model.h"
#include "kernels/products/bf16_terms.h"
#include "kernels/products/spans.h"
#include "simd/this_isa.h"

namespace qkv::test {
namespace {

class Tiles : public OnThisIsa {};

struct Square {
  alignas(64) std::uint32_t words[kAmxTileRows][kAmxTilePairs] = {};
  const std::uint32_t* row(Index r) const { return words[r]; }
};

/// sum + A B on tiles.
Square product_of(const Square& sum, const Square& a, const Square& b) {
  const AmxTiles registers;
  amx_tile_load<0>(sum.words, sizeof sum.words[0]);
  amx_tile_load<5>(a.words, sizeof a.words[0]);
  amx_tile_load<7>(b.words, sizeof b.words[0]);
  amx_tile_add_pairs<0, 5, 7>();
  Square result;
  amx_tile_store<0>(reinterpret_cast<float*>(result.words), sizeof result.words[0]);
  return result;
}

TEST_F(Tiles, AddLowerAndUpperNumbersApart) {
  std::mt19937 random(11);
  for (int n = 0; n < 50; ++n) {
    Square a, b, sum;
    for (Index r = 0; r < kAmxTileRows; ++r) {
      for (Index c = 0; c < kAmxTilePairs; ++c) {
        a.words[r][c] = random_pair(random);
        b.words[r][c] = random_pair(random);
        sum.words[r][c] =
            std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-31F);
      }
    }
    const Square got = product_of(sum, a, b);
    for (Index r = 0; r < kAmxTileRows; ++r) {
      for (Index c = 0; c < kAmxTilePairs; ++c) {
        float lower = 0, upper = 0;
        for (Index k = 0; k < kAmxTilePairs; ++k) {
          lower = model_fma(lower, half_of(a.words[r][k], false), half_of(b.words[k][c], false));
          upper = model_fma(upper, half_of(a.words[r][k], true), half_of(b.words[k][c], true));
        }
        const float expected = std::bit_cast<float>(sum.words[r][c]) + (lower + upper);
        ASSERT_EQ(std::bit_cast<float>(got.words[r][c]), expected) << r << " " << c;
      }
    }
  }
}

TEST_F(Tiles, TakeDenormalsForZeroAndKeepNan) {
  const auto once = [](float sum, std::uint32_t a, std::uint32_t b) {
    Square sums, left, right;
    sums.words[0][0] = std::bit_cast<std::uint32_t>(sum);
    left.words[0][0] = a;
    right.words[0][0] = b;
    return std::bit_cast<float>(product_of(sums, left, right).words[0][0]);
  };
  EXPECT_EQ(once(0, 0x00010001U, 0x7F007F00U), 0) << "a denormal bf16 number times a large one";
  EXPECT_EQ(once(std::numeric_limits<float>::denorm_min(), 0, 0), 0) << "a denormal sum";
  EXPECT_EQ(once(0, 0x00803F80U, 0x3F003F80U), 1) << "2^-126 * 0.5 is lost, 1 * 1 is not";
  EXPECT_TRUE(std::isnan(once(0, 0x7FC00000U, 0))) << "NaN * 0";
  EXPECT_TRUE(std::isnan(once(0, 0x00007F80U, 0))) << "infinity * 0";
  EXPECT_EQ(once(0, 0x00007F80U, 0x3F80U), std::numeric_limits<float>::infinity());
}

/// A product of one shape: operands are NaN wherever it must not read, C is a sentinel wherever it must not write.
struct Shape {
  Index rows, columns, depth;
};

template <Store kStore> void expect_chains(const Shape& shape, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " x " << shape.depth);
  const Index pairs = pairs_of(shape.depth), a_row = 2 * pairs + 6, width = shape.columns + 3;
  const BFloat16 nan = BFloat16(std::numeric_limits<float>::quiet_NaN());
  std::vector<BFloat16> a(static_cast<std::size_t>(shape.rows * a_row), nan);
  std::vector<std::uint32_t> b(static_cast<std::size_t>(pairs * width), 0x7FC07FC0U);
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  for (Index m = 0; m < shape.rows; ++m) {
    for (Index k = 0; k < shape.depth; ++k) {
      a[at(m * a_row + k)] = std::bit_cast<BFloat16>(static_cast<std::uint16_t>(random_pair(random)));
    }
  }
  for (Index k = 0; k < pairs; ++k) {
    for (Index n = 0; n < shape.columns; ++n) {
      b[at(k * width + n)] = random_pair(random) & (2 * k + 1 < shape.depth ? ~0U : 0xFFFFU);
    }
  }
  constexpr float sentinel = 12345, factor = 0.5F;
  std::vector<float> c(static_cast<std::size_t>(shape.rows * width), sentinel);
  const std::vector<float> before = c;
  const Product<BFloat16> product{.a = a.data(),
      .a_row = a_row,
      .a_depth = 2,
      .b = b.data(),
      .b_row = width,
      .c = c.data(),
      .c_row = width,
      .depth = shape.depth,
      .factor = &factor};
  const std::vector<Span> whole(at((shape.rows + kGroup - 1) / kGroup), Span{0, shape.depth});
  product_spans<BFloat16, kStore>(product, shape.rows, shape.columns, whole.data());
  for (Index m = 0; m < shape.rows; ++m) {
    for (Index n = 0; n < width; ++n) {
      if (n >= shape.columns) {
        ASSERT_EQ(c[at(m * width + n)], sentinel);
        continue;
      }
      Chain<BFloat16> chain;
      for (Index k = 0; k < shape.depth; k += 2) {
        const BFloat16* const p = &a[at(m * a_row + k)];
        chain.add(k, k + 1 < shape.depth ? splat_pair(p) : splat_lower(p), U32{} + b[at(k / 2 * width + n)]);
      }
      const float sum = chain.total()[0], old = before[at(m * width + n)];
      const float expected = kStore == Store::kScale ? sum * factor : std::fma(factor, sum, old);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(c[at(m * width + n)]), std::bit_cast<std::uint32_t>(expected))
          << m << " " << n;
    }
  }
}

TEST_F(Tiles, GiveProductsOfAnyShapeInTheOrderOfChains) {
  std::mt19937 random(23);
  for (const Index rows : {1, 15, 16, 17, 33, 64}) {
    for (const Index columns : {1, 16, 31, 64, 80}) {
      for (const Index depth : {1, 2, 31, 32, 33, 64, 80, 129}) {
        expect_chains<Store::kScale>({rows, columns, depth}, random);
        expect_chains<Store::kScaleAdd>({rows, columns, depth}, random);
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
