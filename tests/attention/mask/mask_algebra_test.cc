// The algebra of masks against predicates of single pairs: every leaf and random expressions, at any part of a
// tile, verdicts, lane masks, ranges and the next key.
#include "support/cases/mask_algebra.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "attention/mask/node.h"
#include "attention/mask/summary.h"
#include "support/random.h"

namespace qkv::test {
namespace {

struct Sizes {
  Index batch, num_heads, q_len, kv_len;
};
constexpr std::array<Sizes, 9> kSizes = {{{1, 1, 1, 1}, {2, 2, 5, 7}, {2, 1, 33, 33}, {1, 3, 70, 130}, {3, 2, 150, 90},
    {2, 2, 1, 300}, {2, 1, 300, 1}, {2, 2, 0, 5}, {2, 2, 5, 0}}};

/// The answers for one tile, against the predicate.
void expect_tile(
    const BoundMask& bound, const reference::Keep& keep, Index b, Index h, Index i0, Index ni, Index j0, Index nj) {
  std::array<std::uint32_t, 512> words{};
  const int verdict = mask_tile(&bound, b, h, i0, ni, j0, nj, words.data());
  Index kept = 0;
  for (Index j = 0; j < nj; ++j) {
    std::uint32_t wanted = 0;
    for (Index i = 0; i < ni; ++i) wanted |= keep(b, h, i0 + i, j0 + j) ? 1U << i : 0U;
    kept += std::popcount(wanted);
    if (verdict == kTilePartial) {
      ASSERT_EQ(words[static_cast<std::size_t>(j)], wanted)
          << "tile " << i0 << "+" << ni << " x " << j0 << "+" << nj << " key " << j;
    }
  }
  ASSERT_EQ(verdict, kept == ni * nj ? kTileFull
                     : kept == 0     ? kTileEmpty
                                     : kTilePartial)
      << "tile " << i0 << "+" << ni << " x " << j0 << "+" << nj;
}

/// Ranges and next keys hold what is kept, and the next key is never before the one asked for.
void expect_reach(const BoundMask& bound, const reference::Keep& keep, Index b, Index h, Random& random) {
  const MaskExtent& e = bound.extent;
  const Index i0 = random.below(e.q_len), ni = 1 + random.below(e.q_len - i0);
  const Index j0 = random.below(e.kv_len);
  const auto any = [&](Index first_i, Index count_i, Index first_j, Index count_j) {
    for (Index i = first_i; i < first_i + count_i; ++i) {
      for (Index j = first_j; j < first_j + count_j; ++j) {
        if (keep(b, h, i, j)) return true;
      }
    }
    return false;
  };
  Index begin = 0, end = 0;
  mask_key_range(&bound, b, 0, i0, ni, &begin, &end);
  ASSERT_TRUE(0 <= begin && begin <= end && end <= e.kv_len) << begin << ".." << end;
  ASSERT_FALSE(any(i0, ni, 0, begin) || any(i0, ni, end, e.kv_len - end)) << "keys of " << i0 << "+" << ni;
  const Index next = mask_next_key(&bound, b, h, i0, ni, j0);
  ASSERT_TRUE(next >= j0 && next <= e.kv_len) << next;
  ASSERT_FALSE(any(i0, ni, j0, next - j0)) << "next key of " << i0 << "+" << ni << " from " << j0 << ": " << next;
}

void expect_mask(const MaskCase& made, const Sizes& s, Random& random) {
  const MaskExtent extent{s.batch, s.num_heads, s.q_len, s.kv_len};
  SCOPED_TRACE(made.mask.describe() + " for " + std::to_string(s.q_len) + " x " + std::to_string(s.kv_len));
  ASSERT_NO_THROW(check_mask(made.mask, extent, "test"));
  DenseSummaries summaries;
  BoundMask bound{made.mask.node(), extent};
  if (s.q_len % 2 != 0) bound.extent.summaries = summaries.make(made.mask.node(), Context::default_context());
  Tensor<std::uint8_t> drawn({s.batch, s.num_heads, s.q_len, s.kv_len});
  mask_to_dense(made.mask, drawn);
  if (drawn.count() == 0) return;
  const View<const std::uint8_t, 4> drawing = drawn;
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.num_heads; ++h) {
      for (Index i = 0; i < s.q_len; ++i) {
        for (Index j = 0; j < s.kv_len; ++j)
          ASSERT_EQ(drawing(b, h, i, j) != 0, made.keep(b, h, i, j)) << i << ", " << j;
      }
      const reference::Keep keep = [&](Index sb, Index sh, Index i, Index j) { return drawing(sb, sh, i, j) != 0; };
      for (int n = 0; n < 5; ++n) {
        const Index i0 = random.below(s.q_len), j0 = random.below(s.kv_len);
        const Index ni = 1 + random.below(std::min<Index>(32, s.q_len - i0)), nj = 1 + random.below(s.kv_len - j0);
        expect_tile(bound, keep, b, h, i0, ni, j0, nj);
        ASSERT_EQ(mask_keeps(bound, b, h, i0, j0), made.keep(b, h, i0, j0));
        expect_reach(bound, keep, b, h, random);
        if (testing::Test::HasFatalFailure()) return;
      }
      const Index i = random.below(s.q_len);
      Tensor<std::uint8_t> row({1, s.kv_len});
      mask_rows(made.mask, {s.batch, s.num_heads, s.q_len, s.kv_len}, b, h, {&i, 1}, row.view<2>());
      for (Index j = 0; j < s.kv_len; ++j) ASSERT_EQ(row.data()[j], drawing(b, h, i, j)) << i << ", " << j;
    }
  }
}

TEST(MaskAlgebra, EveryLeafIsItsPredicate) {
  for (int leaf = 0; leaf < kNumLeaves; ++leaf) {
    for (const Sizes& s : kSizes) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        Random random(1000 * static_cast<std::uint64_t>(leaf) + seed);
        MaskMaker maker(s.batch, s.num_heads, s.q_len, s.kv_len, seed % 2 == 0, random);
        SCOPED_TRACE("leaf " + std::to_string(leaf) + ", seed " + std::to_string(seed));
        expect_mask(maker.leaf(static_cast<LeafKind>(leaf)), s, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(MaskAlgebra, RandomExpressionsAreTheirPredicates) {
  for (const Sizes& s : kSizes) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Random random(7777 + seed);
      MaskMaker maker(s.batch, s.num_heads, s.q_len, s.kv_len, seed % 2 == 0, random);
      SCOPED_TRACE("seed " + std::to_string(seed));
      expect_mask(maker.expression(3), s, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MaskAlgebra, LawsOfTheOperators) {
  const Mask everything, causal = Mask::causal(), first = Mask::first(2);
  EXPECT_TRUE((everything | causal).keeps_everything());
  EXPECT_TRUE((causal | everything).keeps_everything());
  EXPECT_EQ((everything & causal).describe(), "causal()");
  EXPECT_EQ((causal | first).describe(), "causal() | first(2)");
  EXPECT_EQ((causal | first | Mask::chunked(4)).describe(), "causal() | first(2) | chunked(4)");
  EXPECT_EQ(((causal | first) & Mask::dilated(2)).describe(), "(causal() | first(2)) & dilated(2)");
  EXPECT_EQ(((causal & first) | Mask::dilated(2)).describe(), "causal() & first(2) | dilated(2)");
}

/// Keys that cannot be attended are skipped, not examined: the next key is exact for the patterns that skip most.
TEST(MaskAlgebra, NextKeyIsExactWhereItPays) {
  const auto next = [](const Mask& mask, Index length, Index i0, Index ni, Index key) {
    const BoundMask bound{mask.node(), {1, 1, length, length}};
    return mask_next_key(&bound, 0, 0, i0, ni, key);
  };
  const Mask streaming = (Mask::window(9, 0) | Mask::first(4)) & Mask::causal();
  EXPECT_EQ(next(streaming, 1000, 500, 10, 0), 0);
  EXPECT_EQ(next(streaming, 1000, 500, 10, 4), 491);
  EXPECT_EQ(next(streaming, 1000, 500, 10, 510), 1000);
  BlockMap map;
  map.q_block = map.kv_block = 100;
  map.q_blocks = map.kv_blocks = 10;
  map.row_begin = {0, 0, 0, 0, 2, 3, 3, 3, 3, 3, 3};
  map.columns = {2, 9, 5};
  const Mask blocks = Mask::blocks(map);
  EXPECT_EQ(next(blocks, 1000, 300, 100, 0), 200);
  EXPECT_EQ(next(blocks, 1000, 300, 100, 300), 900);
  EXPECT_EQ(next(blocks, 1000, 300, 200, 300), 500);
  EXPECT_EQ(next(blocks, 1000, 0, 100, 0), 1000);
  const std::vector<Index> columns = {700, 20};
  EXPECT_EQ(next(Mask::global_columns(columns), 1000, 0, 10, 21), 700);
}

}  // namespace
}  // namespace qkv::test
