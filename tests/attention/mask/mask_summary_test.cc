// Summaries of dense masks: that a summary is true of every tile, skips what hides everything, reads
// a mask once however it lies in memory, and stays within a megabyte. That what is skipped leaves no trace:
// relations_test.cc.
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>

#include "attention/mask/node.h"
#include "attention/mask/summary.h"
#include "qkv/qkv.h"
#include "support/index.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {
namespace {

using Bytes = Tensor<std::uint8_t>;

constexpr Index kBatch = 2, kHeads = 3, kQueries = 150, kKeys = 700;

/// Blocks of 32 x 64 that hold nothing, something, or everything; a repeated axis has size 1.
Bytes blocks(const std::vector<Index>& sizes, std::uint64_t seed) {
  Bytes drawn(sizes);
  Random random(seed);
  const View<std::uint8_t, 4> values = drawn.view<4>();
  for (Index plane = 0; plane < sizes[0] * sizes[1]; ++plane) {
    for (Index i0 = 0; i0 < sizes[2]; i0 += 32) {
      for (Index j0 = 0; j0 < sizes[3]; j0 += 64) {
        const Index kind = random.below(3);
        for (Index i = i0; i < std::min(i0 + 32, sizes[2]); ++i) {
          for (Index j = j0; j < std::min(j0 + 64, sizes[3]); ++j) {
            const bool one = kind == 2 || (kind == 1 && random.below(40) == 0);
            values(plane / sizes[1], plane % sizes[1], i, j) =
                static_cast<std::uint8_t>(one ? 1 + random.below(255) : 0);
          }
        }
      }
    }
  }
  return drawn;
}

/// The same numbers, queries innermost.
Bytes transposed(const Bytes& drawn) {
  const View<const std::uint8_t, 4> from = drawn.view<4>();
  Bytes to({from.size(0), from.size(1), from.size(3), from.size(2)});
  const View<std::uint8_t, 4> view = to.view<4>();
  for_each_index(from.sizes(), [&](Index b, Index h, Index i, Index j) { view(b, h, j, i) = from(b, h, i, j); });
  return to;
}

/// Random tiles and next keys, with summaries and without.
void expect_same_answers(const Mask& mask, Random& random, Context& context) {
  SCOPED_TRACE(mask.describe());
  MaskExtent extent{kBatch, kHeads, kQueries, kKeys};
  const BoundMask plain{mask.node(), extent};
  DenseSummaries summaries;
  extent.summaries = summaries.make(mask.node(), context);
  ASSERT_NE(extent.summaries, nullptr);
  const BoundMask known{mask.node(), extent};
  for (int n = 0; n < 60; ++n) {
    const Index b = random.below(kBatch), h = random.below(kHeads), i0 = random.below(kQueries),
                j0 = random.below(kKeys);
    const Index ni = 1 + random.below(std::min<Index>(32, kQueries - i0)), nj = 1 + random.below(kKeys - j0);
    std::array<std::uint32_t, kKeys> words{}, known_words{};
    const int verdict = mask_tile(&plain, b, h, i0, ni, j0, nj, words.data());
    ASSERT_EQ(mask_tile(&known, b, h, i0, ni, j0, nj, known_words.data()), verdict);
    if (verdict == kTilePartial) {
      ASSERT_EQ(known_words, words);
    }
    const Index rows = 1 + random.below(kQueries - i0);
    const Index next = mask_next_key(&known, b, h, i0, rows, j0);
    ASSERT_GE(next, j0);
    for (Index i = i0; i < i0 + rows; ++i) {
      for (Index j = j0; j < next; ++j) ASSERT_FALSE(mask_keeps(plain, b, h, i, j)) << i << ", " << j;
    }
  }
}

TEST(MaskSummary, AnswersAsTheMaskDoes) {
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  Random random(3);
  std::uint64_t seed = 0;
  for (const Index b : {1, int(kBatch)}) {
    for (const Index h : {1, int(kHeads)}) {
      for (const Index q : {1, int(kQueries)}) {
        for (const Index k : {1, int(kKeys)}) {
          const Bytes values = blocks({b, h, q, k}, ++seed), turned = transposed(values);
          const View<const std::uint8_t, 4> rows = values.view<4>(), columns = turned.view<4>().transposed(2, 3);
          for (const View<const std::uint8_t, 4>& view : {rows, columns}) {
            expect_same_answers(Mask::keep(view), random, context);
            expect_same_answers(Mask::drop(view) & Mask::first(600), random, context);
            expect_same_answers(
                (Mask::keep(view) & Mask::dilated(2, Align::kTopLeft)) | Mask::drop(rows), random, context);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// One leaf's summary, or a mask of such a size would.
DenseSummary summary_of(const Mask& mask, std::size_t limit = DenseSummaries::kLimitBytes) {
  std::optional<DenseSummary> summary;
  each_dense(mask.node(), [&](const DenseLeaf& leaf) { summary.emplace(leaf, limit); });
  return *summary;
}

TEST(MaskSummary, KnowsWholeBlocksAndSkipsThem) {
  Bytes values({1, 1, 96, 640});
  const View<std::uint8_t, 4> view = values.view<4>();
  for (Index i = 32; i < 64; ++i) {
    for (Index j = 448; j < 512; ++j) view(0, 0, i, j) = 1;
  }
  view(0, 0, 40, 600) = 1;
  Context context({.threads = 1});
  DenseSummaries summaries;
  const Mask mask = Mask::keep(View<const std::uint8_t, 4>(view));
  MaskExtent extent{1, 1, 96, 640};
  extent.summaries = summaries.make(mask.node(), context);
  const MaskPart& leaf = *mask.node()->parts[0];
  const auto verdict = [&](Index i0, Index ni, Index j0, Index nj) {
    return leaf.verdict({extent, 0, 0, i0, ni, j0, nj});
  };
  EXPECT_EQ(verdict(0, 32, 0, 640), kTileEmpty);
  EXPECT_EQ(verdict(32, 32, 448, 64), kTileFull);
  EXPECT_EQ(verdict(33, 3, 450, 1), kTileFull);
  EXPECT_EQ(verdict(32, 32, 384, 128), kTilePartial);
  EXPECT_EQ(verdict(32, 32, 576, 64), kTilePartial);
  EXPECT_EQ(verdict(64, 32, 448, 64), kTileEmpty);
  const auto next = [&](Index i0, Index ni, Index key) { return leaf.next_key({extent, 0, 0, i0, ni, key, 1}); };
  EXPECT_EQ(next(0, 32, 0), 640);
  EXPECT_EQ(next(0, 96, 0), 448);
  EXPECT_EQ(next(40, 1, 450), 450);
  EXPECT_EQ(next(40, 1, 512), 576);
  EXPECT_EQ(next(64, 32, 100), 640);
}

TEST(MaskSummary, StaysWithinAMegabyteAtAnyLength) {
  const std::uint8_t nothing = 0;  // only sizes are read
  const auto summary_of_sizes = [&](Index batch, Index heads, Index q_len, Index kv_len) {
    const View<const std::uint8_t, 4> values(&nothing, {batch, heads, q_len, kv_len});
    return summary_of(Mask::keep(values));
  };
  const DenseSummary one = summary_of_sizes(1, 1, 65536, 65536);
  EXPECT_EQ(one.bytes(), std::size_t{65536 / 32 * 65536 / 64 * 2 / 8});
  for (const Index planes : {1, 2, 3, 7, 32, 1000, 100000}) {
    const DenseSummary many = summary_of_sizes(planes, 2, 65536, 65536);
    EXPECT_LE(many.bytes(), DenseSummaries::kLimitBytes) << planes;
    EXPECT_GT(many.bytes(), DenseSummaries::kLimitBytes / 16) << planes << ": coarser than it must be";
    const View<const std::uint8_t, 4> values(&nothing, {planes, 2, 65536, 65536});
    const Mask two = Mask::keep(values) | Mask::drop(values);
    EXPECT_LE(DenseSummaries::bytes(two.node()), DenseSummaries::kLimitBytes + 4096);
  }
  EXPECT_EQ(summary_of_sizes(1 << 21, 1, 4, 4).bytes(), 0U) << "no summary rather than a large one";
}

/// Blocks made larger by a small limit are still right.
TEST(MaskSummary, LargerBlocksAreTrueToo) {
  const Bytes values = blocks({1, 1, kQueries, kKeys}, 8);
  const Mask mask = Mask::keep(View<const std::uint8_t, 4>(values.view<4>()));
  const MaskExtent extent{1, 1, kQueries, kKeys};
  const BoundMask plain{mask.node(), extent};
  for (const std::size_t limit : std::initializer_list<std::size_t>{0, 1, 2, 3, 5, 8, 9, 20}) {
    DenseSummary summary = summary_of(mask, limit);
    ASSERT_LE(summary.bytes(), limit);
    std::vector<std::uint8_t> memory(summary.bytes());
    summary.blocks = memory.data();
    for (Index item = 0; item < summary.items(); ++item) summary.fill(item);
    for (Index i0 = 0; i0 < kQueries; i0 += 30) {
      for (Index j0 = 0; j0 < kKeys; j0 += 50) {
        std::array<std::uint32_t, 50> words{};
        const int exact = mask_tile(&plain, 0, 0, i0, 30, j0, 50, words.data());
        const int answer = summary.verdict({extent, 0, 0, i0, 30, j0, 50});
        EXPECT_TRUE(answer == exact || answer == kTilePartial);
        const Index next = summary.next_key({extent, 0, 0, i0, 30, j0, 1});
        for (Index j = j0; j < next; ++j) {
          std::uint32_t word = 0;
          ASSERT_EQ(mask_tile(&plain, 0, 0, i0, 30, j, 1, &word), kTileEmpty);
        }
      }
    }
  }
}

TEST(MaskSummary, IsInThePlan) {
  for_each_isa(2, [](Context& context) {
    const Bytes values = blocks({1, kHeads, 300, 300}, 9);
    const AttentionOptions options{.mask = Mask::keep(View<const std::uint8_t, 4>(values.view<4>()))};
    Tensor<float> q({1, kHeads, 300, 64}), out(q.sizes()), dq(q.sizes()), dk(q.sizes()), dv(q.sizes()),
        lse({1, kHeads, 300});
    const AttentionPlan plan = attention_plan(q, q, q, options, context);
    EXPECT_GT(plan.skipped_tiles, 0);
    EXPECT_GT(plan.full_tiles, 0);
    EXPECT_GT(plan.mask_bytes, 0U);
    const auto forward = [&] { attention_forward(q, q, q, {.out = out, .lse = lse}, options, context); };
    const auto backward = [&] {
      attention_backward(q, q, q, out, lse, q, {.dq = dq, .dk = dk, .dv = dv}, options, context);
    };
    context.trim();
    forward();
    EXPECT_EQ(context.scratch_bytes(), 2 * plan.forward_scratch_bytes + plan.mask_bytes);
    context.trim();
    backward();
    EXPECT_EQ(context.scratch_bytes(), 2 * plan.backward_scratch_bytes + plan.backward_shared_bytes + plan.mask_bytes);
  });
}

}  // namespace
}  // namespace qkv::test
