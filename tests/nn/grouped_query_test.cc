// GroupedQueryAttention: equal to the forms it generalises, parameters in files, positions.
#include <gtest/gtest.h>

#include "nn/layer_cases.h"

namespace qkv {
namespace {

using test::random_tensor;
using test::same_bits;

constexpr Index kBatch = 2, kLength = 5, kDim = 12;

nn::LayerConfig config() { return test::grouped_cases()[0].config; }

Tensor<float> input() { return random_tensor({kBatch, kLength, kDim}, 11); }
Tensor<float> output_gradient() { return random_tensor({kBatch, kLength, kDim}, 12); }

/// Without its own features it is MultiHeadAttention, bit for bit.
TEST(GroupedQuery, WithAllHeadsItIsMultiHead) {
  nn::GroupedQueryAttention grouped({.embed_dim = kDim, .num_heads = 3, .seed = 5});
  nn::MultiHeadAttention mha({.embed_dim = kDim, .num_heads = 3, .bias = false, .residual_dropout = 0.0F});
  mha.load_state_dict(grouped.state_dict());
  nn::Saved saved_a, saved_b;
  const Tensor<float> a = grouped.forward(input(), {}, &saved_a), b = mha.forward(input(), {}, &saved_b);
  EXPECT_TRUE(same_bits(a, b));
  EXPECT_TRUE(same_bits(grouped.backward(output_gradient(), saved_a), mha.backward(output_gradient(), saved_b)));
  EXPECT_TRUE(same_bits(grouped.gradients(), mha.gradients()));
}

/// Shared heads are repeated heads: with the weights of k and v repeated for each query head the output is the same,
/// and their gradients sum to those of the shared ones.
TEST(GroupedQuery, SharedHeadsAreRepeatedHeads) {
  nn::LayerConfig shared_config = config();
  shared_config.rotary = RotaryOptions{};
  nn::GroupedQueryAttention shared(shared_config);
  nn::LayerConfig repeated_config = shared_config;
  repeated_config.num_kv_heads = 4;
  nn::GroupedQueryAttention repeated(repeated_config);
  repeated.load_state_dict(test::with_repeated_heads(shared.state_dict(), "k_proj.weight", "v_proj.weight"));
  nn::Saved saved_a, saved_b;
  EXPECT_TRUE(same_bits(shared.forward(input(), {}, &saved_a), repeated.forward(input(), {}, &saved_b)));
  shared.backward(output_gradient(), saved_a);
  repeated.backward(output_gradient(), saved_b);
  const Tensor<float> one = to_f32(shared.gradients().at("v_proj.weight")),
                      each = to_f32(repeated.gradients().at("v_proj.weight"));
  for (Index n = 0; n < one.count(); ++n) {
    const Index head = n / (6 * kDim), within = n % (6 * kDim);
    const double sum = static_cast<double>(each.data()[2 * head * 6 * kDim + within]) +
                       static_cast<double>(each.data()[(2 * head + 1) * 6 * kDim + within]);
    EXPECT_NEAR(one.data()[n], sum, 1e-5);
  }
}

TEST(GroupedQuery, ParametersSurviveAFile) {
  for (const auto& [name, _, made] : test::grouped_cases()) {
    SCOPED_TRACE(name);
    nn::GroupedQueryAttention layer(made);
    test::randomise(layer, 8);
    nn::LayerConfig bare{.num_heads = 4, .rotary = made.rotary, .causal = true};
    const auto loaded = nn::load_layer("grouped-query", layer.state_dict(), bare);
    EXPECT_TRUE(same_bits(loaded->state_dict(), layer.state_dict()));
    EXPECT_TRUE(same_bits(loaded->forward(input()), layer.forward(input())));
  }
  nn::GroupedQueryAttention normed(
      {.embed_dim = kDim, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .qk_norm = nn::QkNorm::kHead});
  // One matrix for q, k and v, as torch.nn.MultiheadAttention names it.
  nn::GroupedQueryAttention apart(config());
  StateDict merged;
  Tensor<float> rows({4 * 6 + 2 * 2 * 6, kDim});
  auto next = rows.span().begin();
  for (const nn::Parameter& one : apart.parameters()) {
    if (one.name != "o_proj.weight") next = std::ranges::copy(one.value, next).out;
  }
  merged.add("in_proj_weight", any_tensor(rows));
  merged.add("out_proj.weight", apart.state_dict().at("o_proj.weight").clone());
  const auto from_merged = nn::load_layer("grouped-query", merged, {.num_heads = 4, .causal = true});
  EXPECT_TRUE(same_bits(from_merged->forward(input()), apart.forward(input())));
  EXPECT_TRUE(same_bits(from_merged->state_dict(), merged));
  std::string names;
  for (const nn::Parameter& one : normed.parameters()) names += one.name + " ";
  EXPECT_EQ(names, "q_proj.weight k_proj.weight v_proj.weight o_proj.weight q_norm.weight k_norm.weight ");
}

TEST(GroupedQuery, RefusesFilesThatDoNotFit) {
  nn::GroupedQueryAttention layer(config());
  const auto refused = [&](const std::string& drop, const std::string& add, std::vector<Index> sizes,
                           std::string_view part) {
    StateDict state;
    const StateDict whole = layer.state_dict();
    for (const StateDict::Entry& entry : whole.entries()) {
      if (entry.name != drop) state.add(entry.name, entry.tensor.clone());
    }
    if (!add.empty()) state.add(add, any_tensor(Tensor<float>(std::move(sizes))));
    test::expect_error<Error>([&] { layer.load_state_dict(state); }, {part});
  };
  refused("k_proj.weight", "", {}, "missing parameter k_proj.weight");
  refused("k_proj.weight", "k_proj.weight", {24, 12}, "k_proj.weight must be [12, 12]");
  refused("", "q_norm.weight", {6}, "missing parameter k_norm.weight");
  refused("", "q_proj.bias", {24}, "missing parameter k_proj.bias");
  refused("", "q_norm.colour", {6}, "unknown parameter q_norm.colour");
  nn::GroupedQueryAttention normed(
      {.embed_dim = kDim, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .qk_norm = nn::QkNorm::kVector});
  test::expect_error<OptionError>(
      [&] { normed.load_state_dict(layer.state_dict()); }, {"missing parameter q_norm.weight"});
  const auto make = [](nn::LayerConfig c) { return [c] { nn::make_layer("grouped-query", c); }; };
  test::expect_error<Error>(make({.embed_dim = 12, .num_heads = 4, .num_kv_heads = 3}), {"num_kv_heads"});
  test::expect_error<Error>(make({.embed_dim = 10, .num_heads = 4}), {"num_heads"});
}

/// Only distances between positions count: shifting all tokens together leaves the output, moving one changes it.
TEST(GroupedQuery, OnlyDistancesCount) {
  nn::LayerConfig made = config();
  made.rotary = RotaryOptions{};
  nn::GroupedQueryAttention layer(made);
  const Tensor<float> here = layer.forward(input()), there = layer.forward(input(), {.positions = {.offset = 1000}});
  Tensor<Index> ids({1, kLength});
  for (Index t = 0; t < kLength; ++t) ids.data()[t] = t == 2 ? 9 : t;
  const Tensor<float> moved = layer.forward(input(), {.positions = {.ids = ids}});
  EXPECT_LT(test::distance(there.span(), here.span()), 1e-5);
  EXPECT_GT(test::distance(moved.span(), here.span()), 1e-3);
  test::expect_error<OptionError>(
      [&] { nn::GroupedQueryAttention(config()).forward(input(), {.positions = {.offset = 1}}); },
      {"positions are read by layers with rotary positions"});
}

TEST(GroupedQuery, EmptyRowsAreZero) {
  nn::LayerConfig made = config();
  made.output_bias = false;
  nn::GroupedQueryAttention layer(made);
  Tensor<std::uint8_t> keep({kBatch, kLength});
  for (Index t = 1; t < kLength; ++t) keep.data()[t] = keep.data()[kLength + t] = 1;  // the first query has no key
  const Tensor<float> y = layer.forward(input(), {.mask = layer.keep(keep)});
  for (Index e = 0; e < kDim; ++e) EXPECT_EQ(y.data()[e], 0);
}

/// Of layers whose q, k and v together are as wide: of other heads, of another x; and of a layer without norms.
TEST(GroupedQuery, SavedOfAnotherLayerIsRefused) {
  const auto made = [](Index dim, Index heads, Index kv_heads, nn::QkNorm norm = nn::QkNorm::kNone) {
    return nn::GroupedQueryAttention(
        {.embed_dim = dim, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = 4, .qk_norm = norm});
  };
  nn::GroupedQueryAttention layer = made(8, 4, 1), normed = made(8, 4, 1, nn::QkNorm::kHead);
  Tensor<float> dx({1, 3, 8});
  const nn::GroupedQueryAttention others[] = {made(8, 2, 2), made(6, 4, 1)};
  for (const nn::GroupedQueryAttention& other : others) {
    nn::Saved saved;
    (void)other.forward(random_tensor({1, 3, other.embed_dim()}, 1), {}, &saved);
    ASSERT_EQ(saved.projected.size(2), layer.projected_width());
    test::expect_error<OptionError>([&] { layer.backward(dx, saved); }, {"saved must come from this layer's forward"});
  }
  nn::Saved without_norms;
  (void)layer.forward(random_tensor({1, 3, 8}, 1), {}, &without_norms);
  EXPECT_THROW(normed.backward(dx, without_norms), OptionError);

  nn::FixedWeights four(nn::LayerConfig{.length = 4}), three(nn::LayerConfig{.length = 3});
  nn::Saved saved;
  (void)three.forward(random_tensor({1, 3, 8}, 1), {}, &saved);
  EXPECT_THROW(four.backward(dx, saved), OptionError);
}

}  // namespace
}  // namespace qkv
