// From q and k to the explorer's file and page: its maps are the library's weights, and nothing is left to ignore.
#include "qkv/view/explorer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "qkv/attention.h"

namespace qkv::view {
namespace {

Tensor<float> waves(std::vector<Index> sizes, double step) {
  Tensor<float> out(std::move(sizes));
  for (Index n = 0; n < out.count(); ++n)
    out.data()[n] = static_cast<float>(2 * std::sin(step * static_cast<double>(n * n % 1009)));
  return out;
}

StateDict small(Index heads, Index kv_heads, Index q_len, Index kv_len) {
  StateDict state;
  state.add("q", any_tensor(waves({heads, q_len, 8}, 0.37)));
  state.add("k", any_tensor(waves({kv_heads, kv_len, 8}, 0.53)));
  return state;
}

Tensor<float> weights_of(const StateDict& state, const AttentionOptions& options) {  // [1, H, Tq, Tk]
  Tensor<float> q = to_f32(state.at("q")), k = to_f32(state.at("k"));
  Tensor<float> weights({1, q.size(0), q.size(1), k.size(1)});
  q.reshape({1, q.size(0), q.size(1), q.size(2)});
  k.reshape({1, k.size(0), k.size(1), k.size(2)});
  attention_forward(q, k, {}, {.weights = weights}, options);
  return weights;
}

TEST(Explorer, MapsOfShortTextsAreTheWeights) {
  StateDict state = small(4, 2, 9, 13);
  state.metadata = {{"causal", "true"}, {"softcap", "3"}, {"scale", "0.5"}};
  const StateDict file = explorer_of_heads(state);
  const Tensor<float> expected =
      weights_of(state, {.mask = Mask::causal(Align::kBottomRight), .scale = 0.5, .softcap = 3});
  const Tensor<float> map = to_f32(file.at("0/0/map")), mass = to_f32(file.at("0/0/mass")),
                      lse = to_f32(file.at("0/0/lse"));
  ASSERT_EQ(map.sizes(), (std::vector<Index>{4, 9, 13}));
  for (Index n = 0; n < map.count(); ++n) EXPECT_NEAR(map.data()[n], expected.data()[n], 1e-6);
  for (Index h = 0; h < 4; ++h) {
    for (Index j = 0; j < 13; ++j) {
      double sum = 0;
      for (Index i = 0; i < 9; ++i) sum += static_cast<double>(expected.data()[(h * 9 + i) * 13 + j]);
      EXPECT_NEAR(mass.data()[h * 13 + j], sum / 9, 1e-6);
    }
  }
  EXPECT_EQ(lse.sizes(), (std::vector<Index>{4, 9}));
  EXPECT_EQ(file.metadata.at("format"), "qkv.explorer.1");
}

TEST(Explorer, RowsOfALongMapAreSharesOfAttention) {
  const StateDict state = small(2, 1, 300, 517);
  const StateDict file = explorer_of_heads(state);
  const Tensor<float> map = to_f32(file.at("0/0/map")), expected = weights_of(state, {});
  ASSERT_EQ(map.sizes(), (std::vector<Index>{2, 128, 128}));
  for (Index row = 0; row < 2 * 128; ++row) {
    double sum = 0;
    for (Index c = 0; c < 128; ++c) sum += static_cast<double>(map.data()[row * 128 + c]);
    EXPECT_NEAR(sum, 1, 1e-5) << row;
  }
  double block = 0;  // queries and keys of the first cell: floor(i 128 / 300) = 0, floor(j 128 / 517) = 0
  for (Index i = 0; i * 128 / 300 == 0; ++i)
    for (Index j = 0; j * 128 / 517 == 0; ++j) block += static_cast<double>(expected.data()[i * 517 + j]);
  EXPECT_NEAR(map.data()[0], block / 3, 1e-6);
}

/// Queries and keys of two texts have positions that cannot be compared. Kinds themselves: python/tests/explore.
TEST(Explorer, KindsOfTwoTexts) {
  StateDict state = small(2, 1, 9, 13);
  const auto compares = [&] {
    return explorer_of_heads(state).metadata.at("explorer").find("previous share") != std::string::npos;
  };
  EXPECT_FALSE(compares());
  state.metadata = {{"causal", "true"}};
  EXPECT_TRUE(compares());
}

TEST(Explorer, AnLseThatDoesNotFollowIsRefused) {
  StateDict state = small(1, 1, 5, 5);
  const StateDict computed = explorer_of_heads(state);
  state.add("lse", computed.at("0/0/lse").clone());
  EXPECT_NO_THROW(explorer_of_heads(state));
  state.metadata["causal"] = "true";
  EXPECT_THROW(explorer_of_heads(state), OptionError);
}

TEST(Explorer, MetadataOutsideTheFormIsRefused) {
  for (const auto& [name, text] : std::vector<std::pair<const char*, const char*>>{{"causal", "1"}, {"window", "3"},
           {"window", "-2,0"}, {"window", "a,0"}, {"scale", "x"}, {"format", "qkv.explorer.1"}, {"colour", "red"}}) {
    StateDict state = small(1, 1, 4, 4);
    state.metadata[name] = text;
    EXPECT_THROW(explorer_of_heads(state), Error) << name << " " << text;
  }
}

TEST(Explorer, WindowsAndBiasesOfPositionsAreThoseOfTheCall) {
  StateDict state = small(4, 2, 9, 13);
  state.metadata = {{"window", "3,1"}};
  state.add("alibi", any_tensor(waves({4}, 1)));
  const Tensor<float> slopes = to_f32(state.at("alibi")), map = to_f32(explorer_of_heads(state).at("0/0/map"));
  Tensor<float> bias({1, 4, 9, 13});
  for (Index n = 0; n < bias.count(); ++n) {
    const Index i = n / 13 % 9, j = n % 13;
    bias.data()[n] = -slopes.data()[n / 13 / 9] * static_cast<float>(std::abs(j - i - 4));
  }
  const Tensor<float> expected = weights_of(state, {.mask = Mask::window(3, 1, Align::kBottomRight), .bias = bias});
  for (Index n = 0; n < map.count(); ++n) EXPECT_NEAR(map.data()[n], expected.data()[n], 1e-6);
}

TEST(Explorer, NamesAndSizesOutsideTheFormAreRefused) {
  EXPECT_THROW(explorer_of_heads(small(3, 2, 4, 4)), ShapeError);
  EXPECT_THROW(explorer_of_heads(small(2, 2, 4, 4), {"a"}), ShapeError);
  StateDict extra = small(1, 1, 4, 4);
  extra.add("v", any_tensor(waves({1, 4, 8}, 1)));
  EXPECT_THROW(explorer_of_heads(extra), OptionError);
  StateDict biased = small(1, 1, 4, 6);
  biased.add("alibi", any_tensor(waves({1}, 1)));
  biased.metadata["offset"] = "1";
  EXPECT_THROW(explorer_of_heads(biased), UnsupportedError);
  EXPECT_THROW(render_explorer(biased), OptionError);
  StateDict file = explorer_of_heads(small(1, 1, 4, 4));
  file.add("0/0/rows/", any_tensor(waves({1, 4}, 1)));
  EXPECT_THROW(render_explorer(file), OptionError);
}

}  // namespace
}  // namespace qkv::view
