// Masks read back through weights with equal scores: offsets of any size, axes by name; their texts; calls without
// queries or keys.
#include "qkv/mask.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "qkv/attention.h"
#include "support/cases/mask_case.h"

namespace qkv::test {
namespace {

/// The mask as rows of 0 and 1, "1000/1100/...", for sequence b of `batch`: where the weights of equal scores are not
/// 0.
std::string draw(const Mask& mask, Index q_len, Index kv_len, Index batch = 1, Index b = 0) {
  const Tensor<float> q({batch, 1, q_len, 1}), k({batch, 1, kv_len, 1});
  Tensor<float> weights({batch, 1, q_len, kv_len});
  attention_forward(q, k, {}, {.weights = weights}, {.mask = mask});
  const View<const float, 4> w = weights;
  std::string rows;
  for (Index i = 0; i < q_len; ++i) {
    if (i > 0) rows += '/';
    for (Index j = 0; j < kv_len; ++j) rows += w(b, 0, i, j) > 0 ? '1' : '0';
  }
  return rows;
}

TEST(Mask, OffsetsAndCountsOfAnySizeAreExact) {
  constexpr Index kMost = std::numeric_limits<Index>::max(), kLeast = std::numeric_limits<Index>::min();
  const std::vector<Index> least = {kLeast}, most = {kMost};
  EXPECT_EQ(draw(Mask::window(kMost, kMost, least), 3, 3), "000/100/110");  // j <= i - 1
  EXPECT_EQ(draw(Mask::window(kMost, 0, most), 3, 3), "111/011/001");       // j >= i
  EXPECT_EQ(draw(Mask::window(kMost, kMost), 3, 3), "111/111/111");
  EXPECT_EQ(draw(Mask::causal(least), 2, 2), "00/00");
  EXPECT_EQ(draw(Mask::causal(most), 2, 2), "11/11");
}

TEST(Mask, TensorsNameTheirAxesToo) {
  Tensor<std::uint8_t> two({2, 3}), three({2, 2, 3}), one({3});
  two.data()[1] = three.data()[8] = 1;  // (0, 1) and (1, 0, 2)
  EXPECT_EQ(draw(Mask::keep(two, MaskAxes::kQk), 2, 3), "010/000");
  EXPECT_EQ(draw(Mask::drop(two, MaskAxes::kQk), 2, 3), "101/111");
  EXPECT_EQ(draw(Mask::keep(three, MaskAxes::kBqk), 2, 3, 2, 1), "001/000");
  EXPECT_THROW(Mask::keep(one, MaskAxes::kQk), ShapeError);
}

TEST(Mask, SaysWhatItIs) {
  const Mask mask = Mask::causal(Align::kBottomRight) & Mask::window(255, 0);
  EXPECT_NE(mask.describe().find("causal(bottom-right)"), std::string::npos) << mask.describe();
  EXPECT_NE(mask.describe().find("window(255, 0"), std::string::npos) << mask.describe();
  EXPECT_TRUE(Mask().keeps_everything());
  EXPECT_FALSE(Mask::causal().keeps_everything());
  EXPECT_TRUE((Mask() & Mask()).keeps_everything());
}

/// No kind of mask reads outside its tables where there is no row or no column to ask about.
TEST(Mask, OfNoQueriesOrNoKeys) {
  constexpr Index batch = 2, heads = 2, dim = 4;
  for (std::size_t kind = 0; kind < kMaskNames.size(); ++kind) {
    for (const auto [queries, keys] : {std::array<Index, 2>{0, 5}, {5, 0}, {0, 0}}) {
      if (needs_square(MaskKind(kind)) && queries != keys) continue;
      SCOPED_TRACE(std::string(kMaskNames[kind]) + " " + std::to_string(queries) + " x " + std::to_string(keys));
      const MaskCase made = make_mask(MaskKind(kind), batch, heads, queries, keys, 3);
      const Tensor<float> q({batch, heads, queries, dim}), k({batch, heads, keys, dim});
      Tensor<float> out(q.sizes()), lse({batch, heads, queries}), dq(q.sizes()), dk(k.sizes());
      for (float& x : out.span()) x = 7;
      for (float& x : dk.span()) x = 7;
      attention_forward(q, k, k, {.out = out, .lse = lse}, {.mask = made.mask});
      attention_backward(q, k, k, out, lse, q, {.dq = dq, .dk = dk}, {.mask = made.mask});
      for (const float x : lse.span()) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
      for (const float x : out.span()) EXPECT_EQ(x, 0);
      for (const float x : dk.span()) EXPECT_EQ(x, 0);
    }
  }
}

}  // namespace
}  // namespace qkv::test
