// Embedding, LayerNorm, GELU, Mlp and residual dropout, each against its formula in f64 or finite differences.
#include <gtest/gtest.h>

#include "core/philox.h"
#include "nn/rows/gather_sum.h"
#include "nn_support.h"
#include "support/index.h"

namespace qkv {
namespace {

using test::random_tensor;

constexpr double kEps = std::numeric_limits<float>::epsilon();

TEST(Embedding, ForwardAndBackward) {
  nn::Embedding embedding({.num_embeddings = 5, .embed_dim = 37, .seed = 3});
  std::vector<std::int64_t> ids;
  test::Random random(1);
  for (int n = 0; n < 300; ++n) ids.push_back(random.below(4));  // row 4 is never read
  Tensor<float> y({300, 37});
  embedding.forward(ids, y);
  for (Index m = 0; m < 300; ++m) {
    for (Index e = 0; e < 37; ++e) {
      ASSERT_EQ(y.view<2>()(m, e), embedding.weight().view<2>()(ids[static_cast<std::size_t>(m)], e));
    }
  }
  const Tensor<float> once = y.clone();
  embedding.forward(ids, y, true);
  for (Index n = 0; n < y.count(); ++n) ASSERT_EQ(y.data()[n], 2 * once.data()[n]);

  std::vector<std::int64_t> reversed(ids.rbegin(), ids.rend());
  nn::gather_sum(embedding.weight(), ids, embedding.weight(), reversed, y, Context::default_context());
  for (Index m = 0; m < 300; ++m) {
    for (Index e = 0; e < 37; ++e) ASSERT_EQ(y.view<2>()(m, e), once.view<2>()(m, e) + once.view<2>()(299 - m, e));
  }

  const Tensor<float> dy = random_tensor({300, 37}, 2);
  std::vector<float> expected(5 * 37);  // the same order of additions: ascending m
  for (Index m = 0; m < 300; ++m) {
    for (Index e = 0; e < 37; ++e) {
      expected[static_cast<std::size_t>(ids[static_cast<std::size_t>(m)] * 37 + e)] += dy.view<2>()(m, e);
    }
  }
  test::expect_same_bits_for_threads([&](Context& context) {
    embedding.zero_gradients();
    embedding.backward(ids, dy, context);
    EXPECT_TRUE(test::same_bits(embedding.parameters()[0].gradient, std::span<float>(expected)));
    return test::bits_of(embedding.gradients());
  });
  const std::vector<std::int64_t> wrong = {0, 5};
  Tensor<float> two({2, 37});
  EXPECT_EQ(test::text_of<OptionError>([&] { embedding.forward(wrong, two); }),
      "[Embedding::forward] ids must be in 0..4: got 5");
}

TEST(Embedding, StartsNormal) {
  const nn::Embedding embedding({.num_embeddings = 300, .embed_dim = 100, .seed = 5});
  const auto [count, mean, square, largest] = test::moments_of(embedding.weight().span());
  EXPECT_LE(std::abs(mean), 6 / std::sqrt(count));
  EXPECT_LE(std::abs(square - 1), 6 * std::sqrt(2 / count));
  EXPECT_GT(largest, 3);
}

TEST(LayerNorm, Forward) {
  nn::LayerNorm norm({.embed_dim = 19});
  test::randomise(norm, 1);
  Tensor<float> x = random_tensor({7, 19}, 2);
  for (Index e = 0; e < 19; ++e) x.view<2>()(3, e) = 5;  // no variance: eps alone
  Tensor<float> y({7, 19});
  norm.forward(x, y);
  const auto parameters = norm.parameters();
  for (Index m = 0; m < 7; ++m) {
    double mean = 0, variance = 0;
    for (Index e = 0; e < 19; ++e) mean += static_cast<double>(x.view<2>()(m, e)) / 19;
    for (Index e = 0; e < 19; ++e) variance += std::pow(static_cast<double>(x.view<2>()(m, e)) - mean, 2) / 19;
    for (Index e = 0; e < 19; ++e) {
      const double product = (static_cast<double>(x.view<2>()(m, e)) - mean) / std::sqrt(variance + 1e-5) *
                             static_cast<double>(parameters[0].value[static_cast<std::size_t>(e)]);
      const auto bias = static_cast<double>(parameters[1].value[static_cast<std::size_t>(e)]);
      EXPECT_LE(std::abs(static_cast<double>(y.view<2>()(m, e)) - product - bias),
          2 * kEps * (std::abs(product) + std::abs(bias)));
    }
  }
}

/// The gradient of a bias adds up many tokens: in chains of at most 64, and those in double.
TEST(LayerNorm, ManyWideTokens) {
  constexpr Index tokens = 8192, width = 4096;
  nn::LayerNorm norm({.embed_dim = width});
  Tensor<float> x({tokens, width}), dy({tokens, width});
  std::ranges::fill(dy.span(), 0.1F);
  norm.backward(x, dy, x);
  const double exact = static_cast<double>(0.1F) * tokens;
  const nn::Parameter bias = norm.parameters().at(1);
  ASSERT_EQ(bias.name, "bias");
  EXPECT_NEAR(bias.gradient[7], exact, exact * 33 * std::numeric_limits<float>::epsilon());
}

TEST(LayerNorm, BackwardAndThreads) {
  nn::LayerNorm norm({.embed_dim = 24});
  test::randomise(norm, 1);
  Tensor<float> x = random_tensor({400, 24}, 2);
  const Tensor<float> dy = random_tensor({400, 24}, 3);
  Tensor<float> dx({400, 24});
  norm.backward(x, dy, dx);
  const auto f = [&] {
    Tensor<float> y({400, 24});
    norm.forward(x, y);
    return y;
  };
  test::check_gradient("x", x.span(), std::as_const(dx).span(), dy.span(), f);
  for (const nn::Parameter& one : norm.parameters())
    test::check_gradient(one.name, one.value, one.gradient, dy.span(), f);
  test::expect_same_bits_for_threads(
      [&](Context& context) {
        Tensor<float> again({400, 24});
        norm.zero_gradients();
        norm.backward(x, dy, again, context);
        EXPECT_TRUE(test::same_bits(dx, again));
        return test::bits_of(norm.gradients());
      },
      8);
  Tensor<float> in_place = dy.clone();
  norm.backward(x, in_place, in_place);
  EXPECT_TRUE(test::same_bits(dx, in_place));
}

TEST(LayerNorm, TheFileDecidesAboutTheBias) {
  nn::LayerNorm norm({.embed_dim = 3}), without({.embed_dim = 3, .bias = false});
  norm.load_state_dict(without.state_dict());
  EXPECT_TRUE(test::same_bits(norm.state_dict(), without.state_dict()));
  Tensor<float> x = random_tensor({2, 3}, 1), y({2, 3}), dx({2, 3});
  norm.forward(x, y);
  norm.backward(x, y, dx);
  EXPECT_THROW(nn::LayerNorm({.embed_dim = 3, .eps = 0}), OptionError);
}

TEST(Gelu, ForwardAndBackward) {
  Tensor<float> x({1, 2001});
  for (Index n = 0; n < 2001; ++n) x.data()[n] = static_cast<float>(n - 1000) / 100;
  Tensor<float> y({1, 2001}), ones({1, 2001}), dx({1, 2001});
  std::ranges::fill(ones.span(), 1.0F);
  nn::gelu_forward(x, y);
  nn::gelu_backward(x, ones, dx);
  for (Index n = 0; n < 2001; ++n) {
    const auto value = static_cast<double>(x.data()[n]);
    const double phi = std::erfc(-value / std::sqrt(2.0)) / 2;
    const double density = std::exp(-value * value / 2) / std::sqrt(2 * std::acos(-1.0));
    // The tail's few roundings and those of its exponent, x^2 / 2 in powers of two; the rounding of the result.
    const double tail = std::abs(value) * std::erfc(std::abs(value) / std::sqrt(2.0)) / 2;
    EXPECT_LE(std::abs(static_cast<double>(y.data()[n]) - value * phi),
        kEps * ((3 + value * value / 2) * tail + std::abs(value * phi) / 2))
        << value;
    EXPECT_LE(std::abs(static_cast<double>(dx.data()[n]) - phi - value * density),
        2 * kEps * (1 + (1 + value * value) * std::abs(value) * density))
        << value;
  }
}

TEST(Activations, RefuseOtherSizes) {
  Tensor<float> x({2, 3}), y({2, 3}), other({3, 2});
  for (const auto forward : {nn::gelu_forward, nn::silu_forward})
    EXPECT_THROW(forward(x, other, Context::default_context()), ShapeError);
  for (const auto backward : {nn::gelu_backward, nn::silu_backward}) {
    EXPECT_THROW(backward(x, other, y, Context::default_context()), ShapeError);
    EXPECT_THROW(backward(x, y, other, Context::default_context()), ShapeError);
    EXPECT_THROW(backward(x, {}, y, Context::default_context()), ShapeError);  // no dy is no forward
  }
}

TEST(Mlp, Gradients) {
  nn::Mlp mlp({.embed_dim = 6, .hidden_dim = 10, .seed = 2});
  test::randomise(mlp, 1);
  Tensor<float> x = random_tensor({9, 6}, 2);
  const Tensor<float> dy = random_tensor({9, 6}, 3);
  nn::MlpSaved saved;
  Tensor<float> dx({9, 6}), y({9, 6});
  mlp.forward(x, y, saved);
  mlp.backward(x, dy, dx, saved);
  const auto f = [&] {
    nn::MlpSaved local;
    Tensor<float> again({9, 6});
    mlp.forward(x, again, local);
    return again;
  };
  test::check_gradient("x", x.span(), std::as_const(dx).span(), dy.span(), f);
  for (const nn::Parameter& one : mlp.parameters())
    test::check_gradient(one.name, one.value, one.gradient, dy.span(), f);
  nn::Mlp other({.embed_dim = 6, .hidden_dim = 10});
  other.load_state_dict(mlp.state_dict("mlp."), "mlp.");
  EXPECT_TRUE(test::same_bits(other.state_dict(), mlp.state_dict()));
  EXPECT_EQ(mlp.parameters()[2].name, "c_proj.weight");
}

// Feature e of token t of sequence b reads half e % 8 of the words of counter (t, e / 8, b, 0) (qkv/nn/dropout.h).
TEST(ResidualDropout, FollowsTheContract) {
  constexpr Index batch = 3, length = 5, width = 19;
  for (const double p : {0.1, 0.5, 1.0}) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
      const double threshold = std::round(p * 65536), scale = p == 1 ? 0 : 65536 / (65536 - threshold);
      const std::uint64_t key = seed ^ 0x9E3779B97F4A7C15;
      Tensor<float> ones({batch, length, width}), factors(ones.sizes()), expected(ones.sizes());
      std::ranges::fill(ones.span(), 1.0F);
      test::for_each_index({batch, length, width}, [&](Index b, Index t, Index e) {
        const PhiloxWords words = philox4x32(
            {static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(e / 8), static_cast<std::uint32_t>(b), 0},
            {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
        const std::uint32_t half = words[static_cast<std::size_t>(e % 8 / 2)] >> (16 * (e % 2)) & 0xFFFF;
        expected.view<3>()(b, t, e) = half < threshold ? 0 : static_cast<float>(scale);
      });
      Dropout dropout{.p = p, .seed = seed, .training = true};
      nn::apply_dropout(ones, factors, dropout);
      EXPECT_TRUE(test::same_bits(expected, factors)) << p << " " << seed;
      // One sequence alone, with its index in the batch, gives the same factors.
      dropout.first_sequence = 1;
      Tensor<float> alone({1, length, width});
      nn::apply_dropout(ones.view<3>().sliced(0, 1, 2), alone, dropout);
      EXPECT_TRUE(test::same_bits(alone.span(), factors.span().subspan(length * width, length * width)));
    }
  }
}

TEST(ResidualDropout, IsOnTheOutputOfALayer) {
  nn::MultiHeadAttention layer({.embed_dim = 6, .num_heads = 3, .dropout = 0, .residual_dropout = 0.5F, .seed = 3});
  const Tensor<float> x = random_tensor({2, 5, 6}, 1), plain = layer.forward(x);
  layer.train();
  Tensor<float> expected(plain.sizes());
  nn::apply_dropout(plain, expected, {.p = 0.5, .seed = 7, .training = true});
  EXPECT_TRUE(test::same_bits(layer.forward(x, {.seed = 7}), expected));
}

TEST(ResidualDropout, OffCopies) {
  const Tensor<float> x = random_tensor({2, 3, 5}, 1);
  Tensor<float> y({2, 3, 5});
  nn::apply_dropout(x, y, {.p = 0.5, .seed = 1, .training = false});
  EXPECT_TRUE(test::same_bits(x, y));
  EXPECT_EQ(test::text_of<OptionError>([&] { nn::apply_dropout(x, y, {.p = 1.5, .seed = 1, .training = true}); }),
      "[apply_dropout] dropout p must be in [0, 1]: got 1.5");
}

}  // namespace
}  // namespace qkv
