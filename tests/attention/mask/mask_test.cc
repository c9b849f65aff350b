// Masks as the drawings in qkv/mask.h show them, read back through weights with equal scores; their texts; their
// errors.
#include "qkv/mask.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "qkv/attention.h"
#include "support/cases/mask_case.h"
#include "support/isas.h"

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

TEST(Mask, TheDrawingsOfTheHeader) {
  EXPECT_EQ(draw(Mask::causal(), 4, 4), "1000/1100/1110/1111");
  EXPECT_EQ(draw(Mask::window(1, 0), 4, 4), "1000/1100/0110/0011");
  EXPECT_EQ(draw(Mask::causal(Align::kBottomRight), 2, 4), "1110/1111");
  EXPECT_EQ(draw(Mask::causal(Align::kTopLeft), 2, 4), "1000/1100");
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

TEST(Mask, DrawingsOfTheAlgebra) {
  using Positions = std::vector<Index>;
  const Mask causal = Mask::causal();
  // qkv/mask.h
  EXPECT_EQ(draw(causal | Mask::prefix(Positions{2}), 4, 4), "1100/1100/1110/1111");
  EXPECT_EQ(draw((Mask::window(1, 0) | Mask::first(1)) & causal, 4, 4), "1000/1100/1110/1011");
  EXPECT_EQ(draw(Mask::documents(Positions{0, 1, 4}), 4, 4), "1000/0111/0111/0111");
  EXPECT_EQ(draw(Mask::chunked(2) & causal, 4, 4), "1000/1100/0010/0011");
  // docs/concepts/masks.md
  EXPECT_EQ(draw(Mask::key_starts(Positions{2}), 4, 4), "0011/0011/0011/0011");
  EXPECT_EQ(draw(Mask::key_starts(Positions{2}) & causal, 4, 4), "0000/0000/0010/0011");
  EXPECT_EQ(draw(Mask::query_lengths(Positions{2}), 4, 4), "1111/1111/0000/0000");
  EXPECT_EQ(draw(Mask::first(1), 4, 4), "1000/1000/1000/1000");
  EXPECT_EQ(draw(Mask::global_columns(Positions{0, 2}), 4, 4), "1010/1010/1010/1010");
  EXPECT_EQ(draw(Mask::global_rows(Positions{1}), 4, 4), "0000/1111/0000/0000");
  EXPECT_EQ(draw(Mask::window(1, 1) | Mask::global_rows(Positions{0}) | Mask::global_columns(Positions{0}), 5, 5),
      "11111/11100/11110/10111/10011");
  EXPECT_EQ(draw(Mask::chunked(2), 4, 4), "1100/1100/0011/0011");
  EXPECT_EQ(draw(Mask::dilated(2), 4, 4), "1010/0101/1010/0101");
  EXPECT_EQ(draw(Mask::dilated(2) & Mask::window(2, 0), 4, 4), "1000/0100/1010/0101");
  const Positions q = {0, 1, 3}, k = {0, 2, 5};
  EXPECT_EQ(draw(Mask::documents(q, k), 3, 5), "11000/00111/00111");
  EXPECT_EQ(draw(Mask::documents(q, k, Mask::causal(Align::kBottomRight)), 3, 5), "11000/00110/00111");
  EXPECT_EQ(draw(Mask::document_ids(Positions{0, 1, 0, -1}), 4, 4), "1010/0100/1010/0000");
  // qkv/block_map.h
  BlockMap map;
  map.q_block = map.kv_block = 2;
  map.q_blocks = map.kv_blocks = 4;
  map.row_begin = {0, 1, 3, 5, 7};
  map.columns = {0, 0, 1, 0, 2, 0, 3};
  EXPECT_EQ(draw(Mask::blocks(map), 8, 8), "11000000/11000000/11110000/11110000/11001100/11001100/11000011/11000011");
}

TEST(Mask, DenseDrawings) {
  const std::array<std::uint8_t, 6> bytes = {1, 0, 255, 0, 7, 0};  // 101 / 010
  EXPECT_EQ(draw(Mask::keep(View<const std::uint8_t, 2>(bytes.data(), {2, 3}), MaskAxes::kQk), 2, 3), "101/010");
  EXPECT_EQ(draw(Mask::drop(View<const std::uint8_t, 2>(bytes.data(), {2, 3}), MaskAxes::kQk), 2, 3), "010/101");
  const View<const std::uint8_t, 2> by_sequence(bytes.data(), {2, 3});
  EXPECT_EQ(draw(Mask::keep(by_sequence, MaskAxes::kBk), 2, 3, 2, 0), "101/101");
  EXPECT_EQ(draw(Mask::keep(by_sequence, MaskAxes::kBk), 2, 3, 2, 1), "010/010");
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
