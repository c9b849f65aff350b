// MultiHeadLatentAttention on bf16: within its roundings of the float layer, forward, backward and steps on caches in
// both forms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nn/latent_configs.h"
#include "nn/nn_support.h"
#include "qkv/error.h"
#include "qkv/nn/latent_attention.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

using nn::LatentAttentionConfig;
using nn::MultiHeadLatentAttention;
using Form = MultiHeadLatentAttention::Form;

constexpr Index kSequences = 2, kTokens = 23, kWidth = 40;
/// A rounding to bf16 changes a number by at most 2^-9 of its size. On the longest way from x to y lie those of x's map
/// (weights, c), the norm, W_kvb (weights, k and v), the query (absorbed too), weights of the softmax, their sum, what
/// it is mapped to (weights, sum), W_o (weights, y); back about as many once more.
constexpr double kRounding = 0x1p-9, kForward = 13 * kRounding, kBackward = 26 * kRounding;

Tensor<BFloat16> tokens(std::uint64_t seed) { return random_bf16({kSequences, kTokens, kWidth}, seed); }

TEST(LatentBf16, IsWithinItsRoundingsOfTheFloatLayer) {
  for_each_isa(2, [](Context& context) {
    for (const LatentAttentionConfig& config : latent_configs(kWidth)) {
      MultiHeadLatentAttention layer(config);
      const Tensor<BFloat16> x = tokens(1), dy = tokens(2);
      const nn::LatentOptions options{.mask = Mask::window(9, 0), .positions = {.offset = 3}};
      nn::LatentSaved saved;
      Tensor<float> y(x.sizes()), dx(x.sizes());
      layer.forward(widened(x), y, saved, options, context);
      layer.backward(widened(dy), saved, dx, context);
      std::vector<std::vector<float>> gradients;
      for (const nn::Parameter& one : layer.parameters())
        gradients.emplace_back(one.gradient.begin(), one.gradient.end());
      layer.zero_gradients();
      nn::Bf16LatentSaved rounded;
      Tensor<BFloat16> y16(x.sizes()), dx16(x.sizes());
      layer.forward(x, y16, rounded, options, context);
      layer.backward(dy, rounded, dx16, context);
      EXPECT_LT(distance<BFloat16>(y16.span(), y.span()), kForward);
      EXPECT_GT(distance<BFloat16>(y16.span(), y.span()), kRounding / 8) << "computed in float";
      EXPECT_LT(distance<BFloat16>(dx16.span(), dx.span()), kBackward);
      std::size_t n = 0;
      double worst = 0;
      for (const nn::Parameter& one : layer.parameters()) {
        const double off = distance<float>(std::span<const float>(one.gradient), gradients[n++]);
        EXPECT_LT(off, kBackward) << one.name;
        if (one.name != "o_proj.bias") {  // the sum of dy, which is bf16 for both
          EXPECT_GT(off, kRounding / 8) << one.name << ": computed in float";
        }
        worst = std::max(worst, off);
      }
      std::printf("error / bound: y %.3f, dx %.3f, parameters %.3f\n",
          distance<BFloat16>(y16.span(), y.span()) / kForward, distance<BFloat16>(dx16.span(), dx.span()) / kBackward,
          worst / kBackward);
      layer.backward(dy, rounded, {}, context);  // without dx, and gradients are added
      n = 0;
      for (const nn::Parameter& one : layer.parameters()) {
        for (float& expected : gradients[n]) expected *= 2;
        EXPECT_LT(distance<float>(std::span<const float>(one.gradient), gradients[n++]), kBackward) << one.name;
      }
    }
  });
}

TEST(LatentBf16, StepsOnCachesAreForward) {
  for (const LatentAttentionConfig& config : latent_configs(kWidth)) {
    const MultiHeadLatentAttention layer(config);
    const Tensor<BFloat16> x = tokens(1);
    nn::LatentSaved saved;
    Tensor<float> y(x.sizes());
    layer.forward(widened(x), y, saved);
    for (const CacheStorage storage : {CacheStorage::kBF16, CacheStorage::kF32}) {
      for (const Form form : {Form::kAuto, Form::kAbsorbed, Form::kMaterialised}) {
        for (const Mask& mask : {Mask(), Mask::window(100, 0, Align::kBottomRight)}) {  // neither hides a token
          KVCache cache(layer.cache_config({.storage = storage, .sequences = kSequences, .capacity = kTokens}));
          const Tensor<BFloat16> got = stepped(layer, x, cache, prefill_and_single, mask, form);
          EXPECT_LT(distance<BFloat16>(got.span(), y.span()), kForward) << static_cast<int>(form);
          EXPECT_GT(distance<BFloat16>(got.span(), y.span()), kRounding / 8) << "computed in float";
          EXPECT_EQ(cache.bytes(),
              static_cast<std::size_t>(kSequences * kTokens * (config.kv_lora_rank + config.qk_rope_head_dim)) *
                  (storage == CacheStorage::kBF16 ? 2 : 4));
        }
      }
    }
  }
}

TEST(LatentBf16, SequencesOfUnequalLengthStep) {
  const MultiHeadLatentAttention layer(latent_configs(kWidth)[1]);
  const Tensor<BFloat16> x = tokens(1);
  const View<const BFloat16, 3> rows = x;
  for (const Form form : {Form::kAbsorbed, Form::kMaterialised}) {
    // The fifth row of sequence b of x as sequence `sequence` of a cache, whose others get rows of zeros.
    const auto last = [&](Index b, KVCache& cache, Index sequence) {
      nn::Bf16LatentStepMemory memory;
      const auto all = static_cast<Index>(cache.sequences().size());
      Tensor<BFloat16> part({all, 1, kWidth}), y(part.sizes());
      for (Index t = 0; t < 5; ++t) {
        std::copy_n(&rows(b, t, 0), kWidth, part.data() + sequence * kWidth);
        layer.step(part, y, cache, memory, {}, form);
      }
      return std::vector<BFloat16>(y.data() + sequence * kWidth, y.data() + (sequence + 1) * kWidth);
    };
    KVCache alone(layer.cache_config({.storage = CacheStorage::kBF16, .capacity = kTokens}));
    const std::vector<BFloat16> expected = last(0, alone, 0);
    KVCache both(layer.cache_config({.storage = CacheStorage::kBF16,
        .layout = CacheLayout::kPaged,
        .max_sequences = 2,
        .page_size = 4,
        .pages = 16}));
    (void)last(1, both, 0);
    both.add_sequence();
    const std::vector<BFloat16> got = last(0, both, 1);
    EXPECT_TRUE(same_bits(got, expected)) << static_cast<int>(form);
  }
}

TEST(LatentBf16, SameBitsForAnyNumberOfThreads) {
  MultiHeadLatentAttention layer(latent_configs(kWidth)[1]);
  const Tensor<BFloat16> x = tokens(1), dy = tokens(2);
  expect_same_bits_for_threads(
      [&](Context& context) {
        nn::Bf16LatentSaved saved;
        Tensor<BFloat16> y(x.sizes()), dx(x.sizes());
        layer.forward(x, y, saved, {}, context);
        layer.backward(dy, saved, dx, context);
        return bits_of(y, dx);
      },
      3);
}

TEST(LatentBf16, Errors) {
  const MultiHeadLatentAttention layer(latent_configs(kWidth)[0]);
  const Tensor<BFloat16> x = tokens(1);
  nn::Bf16LatentStepMemory memory;
  Tensor<BFloat16> y(x.sizes()), narrow({kSequences, kTokens, kWidth - 1});
  KVCache wide(layer.cache_config({.storage = CacheStorage::kF64, .sequences = kSequences, .capacity = kTokens}));
  EXPECT_THROW(layer.step(x, y, wide, memory), OptionError);
  nn::Bf16LatentSaved saved;
  EXPECT_THROW(layer.forward(narrow, narrow, saved), ShapeError);
}

}  // namespace
}  // namespace qkv::test
