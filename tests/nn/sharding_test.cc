// The sum of a layer's shards is the layer, forward and backward: query, key and value split by heads, the output by
// columns.
#include <gtest/gtest.h>

#include "nn_support.h"

namespace qkv {
namespace {

using test::random_tensor;

/// |a - b| <= 8 eps A per element: A sums the same terms made positive, and only their order differs.
void expect_close(
    std::span<const float> a, std::span<const float> b, std::span<const double> terms, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  ASSERT_EQ(a.size(), terms.size()) << what;
  for (std::size_t n = 0; n < a.size(); ++n) {
    const double bound = 8 * static_cast<double>(std::numeric_limits<float>::epsilon()) * terms[n] + 1e-30;
    ASSERT_LE(std::abs(static_cast<double>(a[n]) - static_cast<double>(b[n])), bound) << what << " at " << n;
  }
}

/// rows [M, K] with magnitudes of weight [N, K] or, transposed, [K, N]: sum_k |rows| |weight|.
std::vector<double> positive_product(
    const View<const float, 2>& rows, const std::span<const float>& weight, Index columns, bool by_rows) {
  std::vector<double> terms;
  for (Index m = 0; m < rows.size(0); ++m) {
    for (Index n = 0; n < columns; ++n) {
      double sum = 1;  // the bias
      for (Index k = 0; k < rows.size(1); ++k) {
        const float w = weight[static_cast<std::size_t>(by_rows ? n * rows.size(1) + k : k * columns + n)];
        sum += std::abs(static_cast<double>(rows(m, k)) * static_cast<double>(w));
      }
      terms.push_back(sum);
    }
  }
  return terms;
}

void add(Tensor<float>& sum, const Tensor<float>& part) {
  for (Index n = 0; n < sum.count(); ++n) sum.data()[n] += part.data()[n];
}

void expect_shards_are_the_whole(nn::AttentionLayer& whole, Index parts, Index offset = 0) {
  SCOPED_TRACE(parts);
  constexpr Index batch = 2, length = 9;
  const Index width = whole.embed_dim();
  const Tensor<float> x = random_tensor({batch, length, width}, 1), dy = random_tensor({batch, length, width}, 2);
  const nn::ForwardOptions options{.seed = 7, .positions = {.offset = offset}};
  nn::Saved saved;
  whole.zero_gradients();
  const Tensor<float> y = whole.forward(x, options, &saved), dx = whole.backward(dy, saved);
  const StateDict expected = whole.gradients();

  Tensor<float> y_sum(y.sizes()), dx_sum(dx.sizes());
  whole.zero_gradients();
  for (Index part = 0; part < parts; ++part) {
    nn::GroupedQueryAttention own = nn::shard(whole, part, parts);
    EXPECT_EQ(own.num_heads(), whole.num_heads() / parts);
    nn::Saved own_saved;
    add(y_sum, own.forward(x, options, &own_saved));
    add(dx_sum, own.backward(dy, own_saved));
    nn::add_shard_gradients(whole, own, part, parts);
    // Before the sum nothing is rounded differently: a shard's heads are bit-identical to the whole's.
    const View<const float, 3> attended = own_saved.attended, all = saved.attended;
    for (Index b = 0; b < batch; ++b) {
      for (Index t = 0; t < length; ++t) {
        for (Index n = 0; n < own.width(); ++n) ASSERT_EQ(attended(b, t, n), all(b, t, part * own.width() + n));
      }
    }
  }
  const std::vector<nn::Parameter> parameters = whole.parameters();
  std::span<const float> in_weight, out_weight;
  std::vector<float> stacked;
  for (const nn::Parameter& one : parameters) {
    if (one.sizes.size() == 2 && &one != &parameters[0] && one.sizes[0] == width && one.sizes[1] == whole.width() &&
        one.name.starts_with("o")) {
      out_weight = one.value;
    } else if (one.sizes.size() == 2) {
      stacked.insert(stacked.end(), one.value.begin(), one.value.end());
    }
  }
  in_weight = stacked;
  expect_close(y_sum.span(), y.span(),
      positive_product(nn::as_rows(std::as_const(saved.attended)), out_weight, width, true), "y");
  const View<const float, 3> dprojected = saved.dprojected.view<3>().sliced(2, 0, whole.projected_width());
  const View<const float, 2> rows{
      dprojected.data(), {batch * length, whole.projected_width()}, {dprojected.stride(1), 1}};
  expect_close(dx_sum.span(), dx.span(), positive_product(rows, in_weight, width, false), "dx");
  const StateDict gradients = whole.gradients();
  for (const StateDict::Entry& entry : expected.entries()) {
    const Tensor<float> want = to_f32(entry.tensor), got = to_f32(gradients.at(entry.name));
    double largest = 0;  // each element is a sum over all tokens
    for (const float value : want.span()) largest = std::max(largest, std::abs(static_cast<double>(value)));
    expect_close(
        got.span(), want.span(), std::vector<double>(static_cast<std::size_t>(want.count()), 4 * largest), entry.name);
  }
}

TEST(Sharding, SumOfShardsIsTheWhole) {
  nn::GroupedQueryAttention grouped(
      {.embed_dim = 24, .num_heads = 8, .num_kv_heads = 4, .head_dim = 6, .rotary = RotaryOptions{}, .causal = true});
  for (const Index parts : {1, 2, 4}) expect_shards_are_the_whole(grouped, parts, 4);
  nn::GroupedQueryAttention normed({.embed_dim = 16,
      .num_heads = 4,
      .num_kv_heads = 2,
      .bias = true,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{}});
  test::randomise(normed, 3);
  for (const Index parts : {1, 2}) expect_shards_are_the_whole(normed, parts, 4);
  nn::MultiHeadAttention mha({.embed_dim = 24, .num_heads = 6, .causal = true});
  for (const Index parts : {2, 3, 6}) expect_shards_are_the_whole(mha, parts);
}

/// Heads are numbered in the whole layer, so the same weights are dropped; the output's dropout is the same in every
/// shard.
TEST(Sharding, ShardsDropWhatTheWholeDrops) {
  nn::GroupedQueryAttention layer({.embed_dim = 24,
      .num_heads = 8,
      .num_kv_heads = 2,
      .head_dim = 6,
      .dropout = 0.4F,
      .residual_dropout = 0.2F,
      .causal = true});
  layer.train(true);
  for (const Index parts : {2, 4}) expect_shards_are_the_whole(layer, parts);
}

/// Of a shard of a shard, heads are those of the first whole; a mask by head is the whole's with dropout and without.
TEST(Sharding, ShardsOfShards) {
  nn::GroupedQueryAttention layer({.embed_dim = 24, .num_heads = 4, .dropout = 0.5F});
  const Tensor<float> x = random_tensor({2, 9, 24}, 1);
  Tensor<std::uint8_t> keep({1, 4, 9, 9});
  for (Index n = 0; n < keep.count(); ++n) keep.data()[n] = n / 81 % 2 == 0 || n % 3 != 0;
  const Index last = 3;
  for (const bool training : {false, true}) {
    layer.train(training);
    Tensor<float> weights, own_weights;
    nn::ForwardOptions options{.mask = Mask::keep(View<const std::uint8_t, 4>(keep)),
        .seed = 7,
        .applied = &weights,
        .cut = std::span(&last, 1)};
    const Tensor<float> y = layer.forward(x, options);
    Tensor<float> sum(y.sizes());
    options.applied = &own_weights;
    for (Index part = 0; part < 4; ++part) {
      const nn::GroupedQueryAttention half = nn::shard(layer, part / 2, 2);
      add(sum, nn::shard(half, part % 2, 2).forward(x, options));
      for (const Index b : {0, 1})
        EXPECT_TRUE(std::ranges::equal(own_weights.span().subspan(static_cast<std::size_t>(b) * 81, 81),
            weights.span().subspan(static_cast<std::size_t>(4 * b + part) * 81, 81)));
    }
    for (Index n = 0; n < y.count(); ++n) ASSERT_NEAR(sum.data()[n], y.data()[n], 1e-6) << training << " at " << n;
  }
}

/// More shards than key/value heads: several hold a copy of one, and its gradients add up.
TEST(Sharding, ShardsMayShareAKeyValueHead) {
  nn::GroupedQueryAttention one({.embed_dim = 16, .num_heads = 4, .num_kv_heads = 1, .causal = true});
  for (const Index parts : {2, 4}) expect_shards_are_the_whole(one, parts);
  nn::GroupedQueryAttention two({.embed_dim = 16, .num_heads = 4, .num_kv_heads = 2, .rotary = RotaryOptions{}});
  expect_shards_are_the_whole(two, 4, 4);
}

TEST(Sharding, RefusesWhatCannotBeCut) {
  const nn::GroupedQueryAttention layer({.embed_dim = 24, .num_heads = 6, .num_kv_heads = 2});
  EXPECT_THROW(nn::shard(layer, 0, 4), OptionError);
  EXPECT_THROW(nn::shard(layer, 0, 3), OptionError);
  EXPECT_THROW(nn::shard(layer, 2, 2), OptionError);
  EXPECT_THROW(nn::shard(nn::SelfAttentionV1({.embed_dim = 8}), 0, 1), OptionError);
  const nn::GroupedQueryAttention whole_norm(
      {.embed_dim = 24, .num_heads = 6, .num_kv_heads = 2, .qk_norm = nn::QkNorm::kVector});
  EXPECT_THROW(nn::shard(whole_norm, 0, 2), UnsupportedError);
  nn::GroupedQueryAttention other({.embed_dim = 24, .num_heads = 6, .num_kv_heads = 2});
  EXPECT_THROW(nn::add_shard_gradients(other, nn::shard(layer, 0, 1), 0, 2), ShapeError);
}

}  // namespace
}  // namespace qkv
