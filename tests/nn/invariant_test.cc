// Bits::kInvariant in a context: a row of a Linear, a norm or a layer has one set of bits among any number of rows, and
// a step over a cache those of the whole sequence.
#include <gtest/gtest.h>

#include <array>

#include "latent_configs.h"
#include "nn/rows/norm.h"
#include "nn_support.h"
#include "qkv/nn/mlp.h"
#include "support/isas.h"

namespace qkv {
namespace {

using test::converted;
using test::random_tensor;

/// body(context) for each instruction set, in bits that do not depend on the number of rows.
template <class Body> void for_each_invariant(int threads, const Body& body) {
  for (const Isa isa : test::tested_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    Context context({.threads = threads, .isa = isa, .bits = Bits::kInvariant});
    context.impl().region_flops = 0;
    body(context);
  }
}

/// Rows of `whole`, from `row` on, are those of `part`.
template <class T> void expect_rows(const Tensor<T>& part, const Tensor<T>& whole, Index row) {
  const Index width = whole.size(1), count = part.size(0) * width;
  EXPECT_EQ(std::memcmp(part.data(), whole.data() + row * width, static_cast<std::size_t>(count) * sizeof(T)), 0)
      << part.size(0) << " rows from " << row << " on, width " << width;
}

/// Depths around a block of 128, weights of more than 1 MiB, with and without a bias.
template <class T> void check_linear() {
  for (const Index depth : {1, 20, 128, 129, 1100}) {
    const Index outputs = depth == 1100 ? 250 : 37;
    for (const bool bias : {false, true}) {
      const nn::Linear linear({.in_features = depth, .out_features = outputs, .bias = bias, .seed = 3});
      const Tensor<T> x = converted<T>(random_tensor({70, depth}, 4));
      for_each_invariant(2, [&](Context& context) {
        Tensor<T> whole({70, outputs});
        linear.forward(View<const T, 2>(x), View<T, 2>(whole), context);
        for (const Index rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64}) {
          for (const Index begin : {Index{0}, 70 - rows}) {
            Tensor<T> part({rows, outputs});
            linear.forward(View<const T, 2>(x).sliced(0, begin, begin + rows), View<T, 2>(part), context);
            expect_rows(part, whole, begin);
          }
        }
      });
    }
  }
}

TEST(InvariantRows, Linear) { check_linear<float>(); }
TEST(InvariantRows, LinearInBf16) { check_linear<BFloat16>(); }

TEST(InvariantRows, Norms) {
  const nn::LayerNorm layer_norm({.embed_dim = 45});
  const Tensor<float> x = random_tensor({70, 45}, 4);
  const Tensor<float> weight = random_tensor({45}, 5);
  for_each_invariant(2, [&](Context& context) {
    const auto check = [&](const auto& norm) {
      Tensor<float> whole({70, 45});
      norm(View<const float, 2>(x), View<float, 2>(whole));
      for (Index row = 0; row < 70; ++row) {
        Tensor<float> alone({1, 45});
        norm(View<const float, 2>(x).sliced(0, row, row + 1), View<float, 2>(alone));
        expect_rows(alone, whole, row);
      }
    };
    check([&](View<const float, 2> from, View<float, 2> to) { layer_norm.forward(from, to, context); });
    check([&](View<const float, 2> from, View<float, 2> to) {
      const std::array<Index, 4> sizes = {1, 1, from.size(0), from.size(1)};
      nn::norm_forward<float>(View<const float, 4>(from.data(), sizes), {.weight = weight.data(), .eps = 1e-6},
          View<float, 4>(to.data(), sizes), context);
    });
  });
}

constexpr Index kLayerDim = 48, kLayerLength = 150;

nn::GroupedQueryAttention random_layer() {
  nn::GroupedQueryAttention layer({.embed_dim = kLayerDim,
      .num_heads = 4,
      .num_kv_heads = 2,
      .head_dim = 20,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .causal = true,
      .seed = 4});
  test::randomise(layer, 5);
  return layer;
}

/// Outputs, gradients of inputs and of parameters, one row and many.
template <class T> void check_everywhere() {
  for (const Index tokens : {Index{1}, kLayerLength}) {
    const Tensor<T> x = converted<T>(random_tensor({2, tokens, kLayerDim}, 6));
    const Tensor<T> dy = converted<T>(random_tensor({2, tokens, kLayerDim}, 7));
    const auto run = [&](Context& context) {
      nn::GroupedQueryAttention layer = random_layer();
      nn::SavedOf<T> saved;
      std::vector<Tensor<float>> results;
      results.push_back(converted<float>(layer.forward(View<const T, 3>(x), {.context = &context}, &saved)));
      results.push_back(converted<float>(layer.backward(View<const T, 3>(dy), saved, context)));
      for (const nn::Parameter& each : layer.parameters()) {
        results.emplace_back(each.sizes);
        std::ranges::copy(each.gradient, results.back().data());
      }
      return results;
    };
    test::expect_on_every_isa(run, [](const auto& got, const auto& first) {
      for (std::size_t n = 0; n < got.size(); ++n) EXPECT_TRUE(test::same_bits(got[n], first[n])) << n;
    });
  }
}

TEST(InvariantLayer, BitsAreThoseOfEveryInstructionSet) { check_everywhere<float>(); }
TEST(InvariantLayer, BitsInBf16AreThoseOfEveryInstructionSet) { check_everywhere<BFloat16>(); }

template <class T> void check_linear_everywhere() {
  for (const Index rows : {1, 5, 70}) {
    const Tensor<T> x = random_tensor<T>({rows, 301}, 6), dy = random_tensor<T>({rows, 150}, 7);
    const auto run = [&](Context& context) {
      nn::Linear linear({.in_features = 301, .out_features = 150, .seed = 3});
      Tensor<T> y({rows, 150}), dx({rows, 301});
      linear.forward(View<const T, 2>(x), View<T, 2>(y), context);
      linear.backward(View<const T, 2>(x), View<const T, 2>(dy), View<T, 2>(dx), context);
      return test::bits_of(y, dx, linear.gradients());
    };
    test::expect_on_every_isa(run, [](const auto& got, const auto& first) { EXPECT_TRUE(got == first); });
  }
}

TEST(InvariantLinear, BitsAreThoseOfEveryInstructionSet) { check_linear_everywhere<float>(); }
TEST(InvariantLinear, BitsInBf16AreThoseOfEveryInstructionSet) { check_linear_everywhere<BFloat16>(); }

/// Forward, backward, and steps on a cache in both forms.
TEST(InvariantLayer, LatentAttentionsBitsAreThoseOfEveryInstructionSet) {
  using Latent = nn::MultiHeadLatentAttention;
  const Tensor<float> x = random_tensor({2, 70, 150}, 6), dy = random_tensor({2, 70, 150}, 7);
  for (const nn::LatentAttentionConfig& config : test::latent_configs(150)) {
    const auto run = [&](Context& context) {
      Latent layer(config);
      nn::LatentSaved saved;
      Tensor<float> y(x.sizes()), dx(x.sizes());
      layer.forward(x, y, saved, {}, context);
      layer.backward(dy, saved, dx, context);
      std::string bits = test::bits_of(y, dx, layer.gradients());
      for (const Latent::Form form : {Latent::Form::kAbsorbed, Latent::Form::kMaterialised}) {
        KVCache cache(layer.cache_config({.sequences = 2, .capacity = 70}), context);
        bits += test::bits_of(test::stepped(layer, x, cache, test::prefill_and_single, {}, form, context));
      }
      return bits;
    };
    test::expect_on_every_isa(run, [](const auto& got, const auto& first) { EXPECT_TRUE(got == first); });
  }
}

/// Products longer than a chain, and GELU, of one row and of many.
TEST(InvariantLayer, AnMlpsBitsAreThoseOfEveryInstructionSet) {
  for (const Index rows : {1, 5, 70}) {
    const Tensor<float> x = random_tensor({rows, 150}, 6), dy = random_tensor({rows, 150}, 7);
    const auto run = [&](Context& context) {
      nn::Mlp mlp({.embed_dim = 150, .hidden_dim = 301, .seed = 3});
      nn::MlpSaved saved;
      std::array<Tensor<float>, 2> results{Tensor<float>({rows, 150}), Tensor<float>({rows, 150})};
      mlp.forward(x, results[0], saved, context);
      mlp.backward(x, dy, results[1], saved, context);
      return results;
    };
    test::expect_on_every_isa(run, [](const auto& got, const auto& first) {
      for (std::size_t n = 0; n < got.size(); ++n) EXPECT_TRUE(test::same_bits(got[n], first[n])) << n;
    });
  }
}

/// In chunks and then token by token, over a cache of the layer's own type.
template <class T> void check_steps(CacheStorage storage) {
  const nn::GroupedQueryAttention layer = random_layer();
  const Tensor<T> x = converted<T>(random_tensor({1, kLayerLength, kLayerDim}, 6));
  for_each_invariant(2, [&](Context& context) {
    Tensor<T> whole({kLayerLength, kLayerDim});
    layer.forward_into(
        View<const T, 3>(x), View<T, 3>(whole.data(), {1, kLayerLength, kLayerDim}), {.context = &context}, nullptr);
    KVCache cache({.num_kv_heads = 2, .head_dim = 20, .storage = storage, .capacity = kLayerLength}, context);
    nn::StepMemoryOf<T> memory;
    for (Index begin = 0, end; begin < kLayerLength; begin = end) {
      end = std::min(begin + (begin < 60 ? Index{7} : Index{1}), kLayerLength);
      Tensor<T> part({end - begin, kLayerDim});
      layer.step(View<const T, 3>(x).sliced(1, begin, end), View<T, 3>(part.data(), {1, end - begin, kLayerDim}), cache,
          memory, {}, context);
      expect_rows(part, whole, begin);
    }
  });
}

TEST(InvariantLayer, StepsAreTheWholeSequence) { check_steps<float>(CacheStorage::kF32); }
TEST(InvariantLayer, StepsInBf16AreTheWholeSequence) { check_steps<BFloat16>(CacheStorage::kBF16); }

}  // namespace
}  // namespace qkv
