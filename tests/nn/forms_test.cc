// The forms of the ladder against one another: equal where they must be, bit-identical where they share one
// computation.
#include <gtest/gtest.h>

#include <thread>

#include "nn/layer_cases.h"
#include "support/isas.h"

namespace qkv {
namespace {

using test::random_tensor;
using test::same_bits;

struct Result {
  Tensor<float> y, dx, weights;
  StateDict gradients;
};

Result run(nn::Layer& layer, const Tensor<float>& x, const Tensor<float>& dy, nn::ForwardOptions options = {},
    Context& context = Context::default_context()) {
  Result result;
  nn::Saved saved;
  layer.zero_gradients();
  options.weights = &result.weights;
  options.context = &context;
  result.y = layer.forward(x, options, &saved);
  result.dx = layer.backward(dy, saved, context);
  result.gradients = layer.gradients();
  return result;
}

/// y, dx and the weights of the usual input.
std::array<std::string, 3> bits(nn::Layer& layer, const nn::ForwardOptions& options = {}) {
  const Result result = run(layer, random_tensor({3, 5, 8}, 11), random_tensor({3, 5, 8}, 12), options);
  return {test::bits_of(result.y), test::bits_of(result.dx), test::bits_of(result.weights)};
}

/// Every value of `layer`'s parameters, in order, whatever their names.
std::vector<float> all_gradients(nn::Layer& layer) {
  std::vector<float> all;
  for (const nn::Parameter& one : layer.parameters()) all.insert(all.end(), one.gradient.begin(), one.gradient.end());
  return all;
}

constexpr Index kBatch = 3, kLength = 5, kDim = 8;

TEST(Forms, V1IsV2WithoutOutput) {
  nn::SelfAttentionV1 v1({.embed_dim = kDim, .seed = 3});
  nn::SelfAttentionV2 v2 = nn::to_v2(v1);
  EXPECT_FALSE(v2.has_output_projection());
  EXPECT_TRUE(bits(v1) == bits(v2));
  const StateDict a = v1.gradients(), b = v2.gradients();
  // The merged gradient is the three separate ones stacked.
  for (const std::string suffix : {".weight", ".bias"}) {
    std::vector<std::byte> stacked;
    for (const std::string name : {"query_proj", "key_proj", "value_proj"}) {
      const auto& bytes = a.at(name + suffix).bytes;
      stacked.insert(stacked.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(stacked, b.at("proj" + suffix).bytes);
  }
  EXPECT_TRUE(same_bits(nn::to_v1(v2).state_dict(), v1.state_dict()));
}

TEST(Forms, V2WithOutputHasNoV1) {
  const nn::SelfAttentionV2 v2({.embed_dim = kDim, .output_proj = true});
  EXPECT_EQ(test::text_of<OptionError>([&] { nn::to_v1(v2); }),
      "[SelfAttentionV1] an output projection must be in both forms or in neither: got one from SelfAttentionV2");
}

TEST(Forms, ParametersAreCopiedBetweenLayersOfTheSameSizes) {
  const nn::GroupedQueryAttention one({.embed_dim = 32, .num_heads = 4, .num_kv_heads = 1, .head_dim = 8});
  nn::GroupedQueryAttention other(
      {.embed_dim = 32, .num_heads = 2, .num_kv_heads = 2, .head_dim = 8});  // 48 rows, both
  test::expect_error<ShapeError>(
      [&] { other.copy_parameters(one); }, {"num_kv_heads", "[32, 2, 2, 8]", "[32, 4, 1, 8]"});
  nn::GroupedQueryAttention same(
      {.embed_dim = 32, .num_heads = 4, .num_kv_heads = 1, .head_dim = 8, .bias = true, .seed = 5});
  same.copy_parameters(one);
  EXPECT_FALSE(same.has_bias());
  const Tensor<float> x = test::random_tensor({1, 3, 32}, 1);
  EXPECT_TRUE(test::same_bits(same.forward(x), one.forward(x)));
}

TEST(Forms, RefuseSizesWhoseProductsOverflow) {
  constexpr Index large = (Index{1} << 61) + 1;
  EXPECT_THROW(nn::GroupedQueryAttention({.embed_dim = 4, .num_heads = 8, .head_dim = large}), OptionError);
  EXPECT_THROW(nn::MultiHeadLatentAttention({.embed_dim = 4, .num_heads = large}), OptionError);
  EXPECT_THROW(nn::Mlp({.embed_dim = Index{1} << 62}), ShapeError);
}

TEST(Forms, WeightsOfTwoKindsAreTwoTensors) {
  const nn::SelfAttentionV1 layer({.embed_dim = 8});
  Tensor<float> weights;
  const Tensor<float> x({1, 3, 8});
  test::expect_error<OptionError>([&] { layer.forward(x, {.weights = &weights, .applied = &weights}); },
      {"weights and applied must be two tensors"});
}

TEST(Forms, V3IsV4OutsideTraining) {
  nn::SelfAttentionV3 v3({.embed_dim = kDim, .seed = 3});
  nn::SelfAttentionV4 v4 = nn::to_v4(v3);
  EXPECT_TRUE(bits(v3) == bits(v4));
  EXPECT_TRUE(same_bits(nn::to_v3(v4).state_dict(), v3.state_dict()));
  // In training too, given the same seed: dropout is a function of seed and position.
  v3.train(), v4.train();
  const auto trained = bits(v3, {.seed = 5});
  EXPECT_TRUE(trained == bits(v4, {.seed = 5}));
  EXPECT_FALSE(trained[0] == bits(v4, {.seed = 6})[0]);
  v4.eval();
  EXPECT_FALSE(trained[0] == bits(v4, {.seed = 5})[0]);
}

TEST(Forms, MultiHeadWithOneHeadIsV4) {
  nn::SelfAttentionV4 v4({.embed_dim = kDim, .seed = 3});
  nn::MultiHeadAttention mha({.embed_dim = kDim, .num_heads = 1});
  mha.load_state_dict(v4.state_dict());
  EXPECT_TRUE(bits(v4) == bits(mha));
  EXPECT_EQ(mha.parameters()[0].name, "query_proj.weight");
}

TEST(Forms, SingleHeadIsCausalV4WithoutBiases) {
  nn::SingleHeadAttention single({.embed_dim = kDim, .seed = 3});
  nn::SelfAttentionV4 v4({.embed_dim = kDim, .causal = true});
  v4.load_state_dict(single.state_dict());
  EXPECT_FALSE(v4.has_bias());
  EXPECT_TRUE(bits(single) == bits(v4));
  nn::SelfAttentionV4 open({.embed_dim = kDim});
  open.load_state_dict(single.state_dict());
  EXPECT_TRUE(bits(single, {.causal = false}) == bits(open));
  EXPECT_FALSE(bits(single)[0] == bits(open)[0]);
}

TEST(Forms, SelfAttentionOfFullWidthIsV1) {
  nn::SelfAttentionV1 v1({.embed_dim = kDim, .seed = 3});
  nn::SelfAttention own({.embed_dim = kDim, .d_k = kDim});
  own.load_state_dict(v1.state_dict());
  EXPECT_TRUE(bits(v1) == bits(own));
  EXPECT_EQ(nn::SelfAttention({.embed_dim = kDim, .d_k = 3}).output_dim(), 3);
}

std::vector<test::LayerCase> every_case() {
  std::vector<test::LayerCase> all;
  for (const std::string_view name : nn::layer_names()) {
    const bool heads = name == "mha" || name == "grouped-query";
    all.push_back({std::string(name), name,
        {.embed_dim = kDim,
            .num_heads = heads ? 2 : 1,
            .num_kv_heads = 1,
            .d_k = kDim,
            .length = kLength,
            .rotary = RotaryOptions{},
            .dropout = 0.25F,
            .residual_dropout = 0.25F,
            .empty_row = EmptyRow::kMean,
            .seed = 21}});
    std::ranges::replace(all.back().name, '-', '_');
  }
  for (test::LayerCase& one : test::grouped_cases()) all.push_back(std::move(one));
  return all;
}

/// Every form and every feature of grouped-query, in training mode, with a mask that leaves empty rows.
class EveryForm : public testing::TestWithParam<test::LayerCase> {
 protected:
  EveryForm() : layer_(nn::make_layer(GetParam().layer, GetParam().config)) {
    if (layer_->masks_have_heads()) keep_.reshape({kBatch, 1, kLength, kLength});
    if (GetParam().layer == "grouped-query") test::randomise(*layer_, 8);  // norms of 1 hide where they stand
    layer_->train();
  }

  static bool has_positions() { return GetParam().layer == "grouped-query" && GetParam().config.rotary; }
  Index width() const { return GetParam().config.embed_dim; }
  Tensor<float> input() const { return random_tensor({kBatch, kLength, width()}, 11); }
  Tensor<float> output_gradient() const { return random_tensor({kBatch, kLength, width()}, 12); }
  nn::ForwardOptions options(Context& context = Context::default_context()) const {
    nn::ForwardOptions made{.seed = 7, .context = &context};
    if (has_positions()) made.positions.offset = 2;
    if (GetParam().attends()) made.mask = layer_->keep(keep_);
    return made;
  }

  std::unique_ptr<nn::Layer> layer_;
  /// [batch, length, length], with an empty row.
  static Tensor<std::uint8_t> kept_pairs(Index batch, Index length) {
    Tensor<std::uint8_t> keep({batch, length, length});
    test::Random random(4);
    for (auto& one : keep.span()) one = random.below(3) != 0;
    for (Index j = 0; j < length; ++j) keep.view<3>()(1, 2, j) = 0;
    return keep;
  }
  Tensor<std::uint8_t> keep_ = kept_pairs(kBatch, kLength);
};

TEST_P(EveryForm, Gradients) {
  if (GetParam().layer == "fixed-weights") {  // away from sum(w) = 0
    const std::vector<nn::Parameter> parameters = layer_->parameters();
    for (float& w : parameters[0].value) w = 1 + w / 8;
  }
  for (const bool training : {false, true}) {
    layer_->train(training);
    test::check_gradients(GetParam(), *layer_, input(), output_gradient(), options());
  }
}

TEST_P(EveryForm, SameBitsForAnyNumberOfThreads) {
  const Tensor<float> x = input(), dy = output_gradient();
  test::expect_same_bits_for_threads(
      [&](Context& context) {
        const Result now = run(*layer_, x, dy, options(context), context);
        return test::bits_of(now.y, now.dx, now.weights, now.gradients);
      },
      8);
}

/// y, dx and gradients in T.
template <class T> std::string bits_in(nn::Layer& layer, Index length, Index width, const nn::ForwardOptions& options) {
  const Tensor<T> x = random_tensor<T>({2, length, width}, 11), dy = random_tensor<T>({2, length, width}, 12);
  nn::SavedOf<T> saved;
  layer.zero_gradients();
  const Tensor<T> y = layer.forward(View<const T, 3>(x), options, &saved);
  const Tensor<T> dx = layer.backward(View<const T, 3>(dy), saved, *options.context);
  return test::bits_of(y, dx, layer.gradients());
}

// Rows longer than a chain of 128, more of them than a tile has.
TEST_P(EveryForm, InvariantBitsAreThoseOfEveryInstructionSet) {
  constexpr Index kMany = 70, kWide = 152;
  nn::LayerConfig config = GetParam().config;
  config.embed_dim = config.d_k = kWide, config.length = kMany;
  if (config.head_dim != 0) config.head_dim = 38;
  const auto layer = nn::make_layer(GetParam().layer, config);
  if (GetParam().layer == "grouped-query") test::randomise(*layer, 8);
  layer->train();
  Tensor<std::uint8_t> keep = kept_pairs(2, kMany);
  if (layer->masks_have_heads()) keep.reshape({2, 1, kMany, kMany});
  const auto run_in = [&]<class T>(T, Context& context) {
    nn::ForwardOptions options{.seed = 7, .context = &context};
    if (has_positions()) options.positions.offset = 2;
    if (GetParam().attends()) options.mask = layer->keep(keep);
    return bits_in<T>(*layer, kMany, kWide, options);
  };
  const auto same = [](const std::string& got, const std::string& first) { EXPECT_TRUE(got == first); };
  test::expect_on_every_isa([&](Context& context) { return run_in(float{}, context); }, same);
  if (GetParam().attends())
    test::expect_on_every_isa([&](Context& context) { return run_in(BFloat16{}, context); }, same);
}

TEST_P(EveryForm, SavedIsReused) {
  const Tensor<float> x = input(), dy = output_gradient(), other = random_tensor({kBatch, kLength, width()}, 99);
  const Result fresh = run(*layer_, x, dy, options());
  nn::Saved saved;
  Tensor<float> y({kBatch, kLength, width()}), dx({kBatch, kLength, width()});
  layer_->forward_into(other, y, options(), &saved);
  layer_->backward_into(dy, saved, dx);
  const float* memory[] = {
      saved.x.data(), saved.projected.data(), saved.attended.data(), saved.dprojected.data(), saved.dy.data()};
  layer_->zero_gradients();
  layer_->forward_into(x, y, options(), &saved);
  layer_->backward_into(dy, saved, dx);
  EXPECT_TRUE(same_bits(fresh.y, y));
  EXPECT_TRUE(same_bits(fresh.dx, dx));
  EXPECT_TRUE(same_bits(fresh.gradients, layer_->gradients()));
  const float* now[] = {
      saved.x.data(), saved.projected.data(), saved.attended.data(), saved.dprojected.data(), saved.dy.data()};
  EXPECT_TRUE(std::ranges::equal(memory, now));
  // Gradients accumulate; a null dx is not computed.
  const std::vector<float> once = all_gradients(*layer_);
  layer_->backward_into(dy, saved, {});
  const std::vector<float> twice = all_gradients(*layer_);
  for (std::size_t n = 0; n < once.size(); ++n) EXPECT_FLOAT_EQ(twice[n], 2 * once[n]);
}

TEST_P(EveryForm, ForwardRunsConcurrently) {
  const Tensor<float> x = input();
  const Tensor<float> expected = layer_->forward(x, options());
  std::vector<Tensor<float>> results(4);
  {
    std::vector<std::jthread> threads;
    for (Tensor<float>& result : results) {
      threads.emplace_back([&] {
        nn::Saved saved;
        for (int n = 0; n < 20; ++n) result = layer_->forward(x, options(), &saved);
      });
    }
  }
  for (const Tensor<float>& result : results) EXPECT_TRUE(same_bits(expected, result));
}

TEST_P(EveryForm, AnyStrides) {
  // x and dy [T, B, E] as [B, T, E]; y and dx likewise.
  const Tensor<float> x = input(), dy = output_gradient();
  const Result expected = run(*layer_, x, dy, options());
  const auto turned = [this](const Tensor<float>& from) {
    Tensor<float> result({kLength, kBatch, width()});
    for (Index b = 0; b < kBatch; ++b) {
      for (Index t = 0; t < kLength; ++t) {
        for (Index e = 0; e < width(); ++e) result.view<3>()(t, b, e) = from.view<3>()(b, t, e);
      }
    }
    return result;
  };
  Tensor<float> turned_x = turned(x), turned_dy = turned(dy), y({kLength, kBatch, width()}),
                dx({kLength, kBatch, width()});
  nn::Saved saved;
  layer_->forward_into(turned_x.view<3>().transposed(0, 1), y.view<3>().transposed(0, 1), options(), &saved);
  layer_->backward_into(turned_dy.view<3>().transposed(0, 1), saved, dx.view<3>().transposed(0, 1));
  // One product per sequence may round differently from one product of the whole batch.
  const Tensor<float> expected_y = turned(expected.y), expected_dx = turned(expected.dx);
  for (Index n = 0; n < y.count(); ++n) {
    EXPECT_NEAR(y.data()[n], expected_y.data()[n], 64 * std::numeric_limits<float>::epsilon());
    EXPECT_NEAR(dx.data()[n], expected_dx.data()[n], 64 * std::numeric_limits<float>::epsilon());
  }
}

TEST_P(EveryForm, ShapeErrors) {
  Tensor<float> x({kBatch, kLength, width()}), wrong({kBatch, kLength + 1, width()}), y({kBatch, kLength, width()});
  nn::Saved saved;
  EXPECT_THROW(layer_->forward_into(x, wrong, {}, &saved), ShapeError);
  EXPECT_THROW(layer_->backward(y, saved), OptionError);
  layer_->forward_into(x, y, {}, &saved);
  EXPECT_THROW(layer_->backward_into(wrong, saved, x), ShapeError);
  EXPECT_THROW(layer_->backward_into(y, saved, wrong), ShapeError);
  if (GetParam().attends()) {
    Tensor<float> turned({kBatch, width(), kLength});
    const auto y_turned = turned.view<3>().transposed(1, 2);
    EXPECT_THROW(layer_->forward_into(x, y_turned, {}, &saved), ShapeError);
    EXPECT_THROW(layer_->backward_into(y, saved, y_turned), ShapeError);
    Tensor<float> narrow({kBatch, kLength, width() - 1});
    EXPECT_THROW(layer_->forward(narrow), ShapeError);
  } else {
    EXPECT_THROW(layer_->forward(x, {.mask = Mask::causal()}), OptionError);
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EveryForm, testing::ValuesIn(every_case()),
    [](const testing::TestParamInfo<test::LayerCase>& instance) { return instance.param.name; });

}  // namespace
}  // namespace qkv
