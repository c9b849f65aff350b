// MultiHeadLatentAttention against its formula in plain loops: forward, its derivative along a direction (dual
// numbers), steps on caches in both forms.
#include "qkv/nn/latent_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "nn/latent_configs.h"
#include "nn/nn_support.h"
#include "qkv/error.h"
#include "support/random.h"

namespace qkv::test {
namespace {

using nn::LatentAttentionConfig;
using nn::MultiHeadLatentAttention;

/// A number with its derivative along one direction.
template <class C> struct Dual {
  C v{}, d{};
  Dual() = default;
  Dual(C value) : v(value) {}  // NOLINT(google-explicit-constructor)
  Dual(C value, C slope) : v(value), d(slope) {}
  friend Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
  friend Dual operator-(Dual a, Dual b) { return {a.v - b.v, a.d - b.d}; }
  friend Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.d * b.v + a.v * b.d}; }
  friend Dual operator/(Dual a, Dual b) { return {a.v / b.v, (a.d - a.v / b.v * b.d) / b.v}; }
};
template <class C> Dual<C> exp(Dual<C> x) { return {std::exp(x.v), x.d * std::exp(x.v)}; }
template <class C> Dual<C> sqrt(Dual<C> x) { return {std::sqrt(x.v), x.d / (2 * std::sqrt(x.v))}; }
float exp(float x) { return std::exp(x); }
double exp(double x) { return std::exp(x); }
float sqrt(float x) { return std::sqrt(x); }
double sqrt(double x) { return std::sqrt(x); }

template <class N> using Numbers = std::vector<N>;
template <class N> using Parameters = std::map<std::string, Numbers<N>>;

/// The formula at the head of qkv/nn/latent_attention.h, causal, for one sequence x [T, E].
template <class N> struct Textbook {
  const LatentAttentionConfig& c;
  const Parameters<N>& p;
  Index window = 1000;  // keys that a query sees, its own last

  Numbers<N> map(const Numbers<N>& x, Index rows, Index in, const std::string& name) const {
    const Numbers<N>& w = p.at(name + ".weight");
    const auto out = static_cast<Index>(w.size()) / in;
    Numbers<N> y(static_cast<std::size_t>(rows * out));
    for (Index m = 0; m < rows; ++m) {
      for (Index o = 0; o < out; ++o) {
        N sum{};
        for (Index k = 0; k < in; ++k) sum = sum + at(x, m * in + k) * at(w, o * in + k);
        if (p.contains(name + ".bias")) sum = sum + at(p.at(name + ".bias"), o);
        y[static_cast<std::size_t>(m * out + o)] = sum;
      }
    }
    return y;
  }
  static const N& at(const Numbers<N>& x, Index n) { return x[static_cast<std::size_t>(n)]; }
  static N& at(Numbers<N>& x, Index n) { return x[static_cast<std::size_t>(n)]; }

  void norm(Numbers<N>& x, Index rows, Index stride, Index width, const std::string& name) const {
    for (Index m = 0; m < rows; ++m) {
      N squares{};
      for (Index d = 0; d < width; ++d) squares = squares + at(x, m * stride + d) * at(x, m * stride + d);
      const N root = sqrt(squares / N(static_cast<float>(width)) + N(static_cast<float>(c.norm_eps)));
      for (Index d = 0; d < width; ++d) at(x, m * stride + d) = at(x, m * stride + d) / root * at(p.at(name), d);
    }
  }
  void rotate(Numbers<N>& x, Index row, Index position) const {
    for (Index i = 0; i < c.qk_rope_head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(c.rotary.base, -2.0 * static_cast<double>(i) / static_cast<double>(c.qk_rope_head_dim));
      const N cosine(static_cast<float>(std::cos(angle))), sine(static_cast<float>(std::sin(angle)));
      const N a = at(x, row + 2 * i), b = at(x, row + 2 * i + 1);
      at(x, row + 2 * i) = a * cosine - b * sine;
      at(x, row + 2 * i + 1) = b * cosine + a * sine;
    }
  }
  Numbers<N> forward(const Numbers<N>& x, Index length) const {
    const Index dn = c.qk_nope_head_dim, dr = c.qk_rope_head_dim, dv = c.v_head_dim, rank = c.kv_lora_rank,
                h = c.num_heads;
    Numbers<N> q;
    if (c.q_lora_rank == 0) {
      q = map(x, length, c.embed_dim, "q_proj");
    } else {
      Numbers<N> q_a = map(x, length, c.embed_dim, "q_a_proj");
      norm(q_a, length, c.q_lora_rank, c.q_lora_rank, "q_a_layernorm.weight");
      q = map(q_a, length, c.q_lora_rank, "q_b_proj");
    }
    Numbers<N> latent = map(x, length, c.embed_dim, "kv_a_proj_with_mqa");
    norm(latent, length, rank + dr, rank, "kv_a_layernorm.weight");
    Numbers<N> compressed;
    for (Index t = 0; t < length; ++t) {
      for (Index n = 0; n < h; ++n) rotate(q, (t * h + n) * (dn + dr) + dn, t);
      rotate(latent, t * (rank + dr) + rank, t);
      for (Index d = 0; d < rank; ++d) compressed.push_back(at(latent, t * (rank + dr) + d));
    }
    const Numbers<N> kv = map(compressed, length, rank, "kv_b_proj");
    const N scale(static_cast<float>(1 / std::sqrt(static_cast<double>(dn + dr))));
    Numbers<N> attended(static_cast<std::size_t>(length * h * dv));
    for (Index i = 0; i < length; ++i) {
      for (Index n = 0; n < h; ++n) {
        Numbers<N> weights;
        N sum{};
        for (Index j = std::max<Index>(0, i - window + 1); j <= i; ++j) {
          N score{};
          for (Index d = 0; d < dn; ++d)
            score = score + at(q, (i * h + n) * (dn + dr) + d) * at(kv, (j * h + n) * (dn + dv) + d);
          for (Index d = 0; d < dr; ++d)
            score = score + at(q, (i * h + n) * (dn + dr) + dn + d) * at(latent, j * (rank + dr) + rank + d);
          weights.push_back(exp(score * scale));
          sum = sum + weights.back();
        }
        for (Index j = std::max<Index>(0, i - window + 1); j <= i; ++j) {
          for (Index d = 0; d < dv; ++d) {
            N& to = at(attended, (i * h + n) * dv + d);
            to = to +
                 at(weights, j - std::max<Index>(0, i - window + 1)) / sum * at(kv, (j * h + n) * (dn + dv) + dn + d);
          }
        }
      }
    }
    return map(attended, length, h * dv, "o_proj");
  }
};

struct Layer {
  LatentAttentionConfig config;
  MultiHeadLatentAttention layer;
  Index batch, length;
  Tensor<float> x, dy;

  Layer(const LatentAttentionConfig& c, Index given_batch, Index given_length)
      : config(c), layer(c), batch(given_batch), length(given_length), x({batch, length, c.embed_dim}), dy(x.sizes()) {
    Random random(7);
    for (float& one : x.span()) one = static_cast<float>(random.symmetric());
    for (float& one : dy.span()) one = static_cast<float>(random.symmetric());
    for (nn::Parameter& one : layer.parameters()) {
      if (one.sizes.size() == 1) {
        for (float& w : one.value) w = static_cast<float>(0.5 + random.unit());
      }
    }
  }

  template <class N, class Make> Numbers<N> textbook(const Make& make, Index window = 1000) {
    Parameters<N> parameters;
    for (const nn::Parameter& one : layer.parameters()) {
      for (std::size_t n = 0; n < one.value.size(); ++n) parameters[one.name].push_back(make(one.value[n], n));
    }
    Numbers<N> all;
    for (Index b = 0; b < batch; ++b) {
      Numbers<N> rows;
      for (Index n = 0; n < length * config.embed_dim; ++n) {
        const auto at = static_cast<std::size_t>(b * length * config.embed_dim + n);
        rows.push_back(make(x.data()[at], at + 1));
      }
      const Numbers<N> y = Textbook<N>{config, parameters, window}.forward(rows, length);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }
  template <class N> Numbers<N> plain(Index window = 1000) {
    return textbook<N>([](float value, std::size_t) { return N(value); }, window);
  }
};

/// The largest error of plain loops in float, twice, and a few roundings of the largest number.
double bound_of(const Numbers<double>& truth, const Numbers<float>& plain) {
  double error = 0, largest = 0;
  for (std::size_t n = 0; n < truth.size(); ++n) {
    error = std::max(error, std::abs(truth[n] - static_cast<double>(plain[n])));
    largest = std::max(largest, std::abs(truth[n]));
  }
  return 2 * error + 4 * static_cast<double>(std::numeric_limits<float>::epsilon()) * largest;
}

void expect_within(std::span<const float> got, const Numbers<double>& truth, double bound, const char* what) {
  ASSERT_EQ(got.size(), truth.size());
  double worst = 0;
  for (std::size_t n = 0; n < truth.size(); ++n) {
    const double error = std::abs(static_cast<double>(got[n]) - truth[n]);
    if (!(error <= worst)) worst = error;  // NaN too
  }
  std::printf("%s: error / bound %.3f\n", what, worst / bound);
  EXPECT_LE(worst, bound) << what;
}

TEST(LatentAttention, ForwardIsTheFormula) {
  for (const LatentAttentionConfig& config : latent_configs(24)) {
    Layer one(config, 2, 9);
    nn::LatentSaved saved;
    Tensor<float> y(one.x.sizes());
    one.layer.forward(one.x, y, saved);
    const Numbers<double> truth = one.plain<double>();
    expect_within(y.span(), truth, bound_of(truth, one.plain<float>()), "forward");
  }
}

TEST(LatentAttention, GradientsAreTheDerivative) {
  for (const LatentAttentionConfig& config : latent_configs(24)) {
    Layer one(config, 2, 7);
    nn::LatentSaved saved;
    Tensor<float> y(one.x.sizes()), dx(one.x.sizes());
    one.layer.forward(one.x, y, saved);
    one.layer.zero_gradients();
    one.layer.backward(one.dy, saved, dx);
    for (int direction = 0; direction < 6; ++direction) {
      const auto slope = [&](std::size_t n) { return std::cos(static_cast<double>(n) * 1.7 + direction); };
      const auto along = [&]<class C>(C) {
        const auto out = one.textbook<Dual<C>>(
            [&](float value, std::size_t n) { return Dual<C>(static_cast<C>(value), static_cast<C>(slope(n))); });
        C sum = 0;
        for (std::size_t n = 0; n < out.size(); ++n) sum += static_cast<C>(one.dy.data()[n]) * out[n].d;
        return static_cast<double>(sum);
      };
      double got = 0, magnitude = 0;
      const auto add = [&](float gradient, std::size_t n) {
        got += static_cast<double>(gradient) * slope(n);
        magnitude += std::abs(static_cast<double>(gradient) * slope(n));
      };
      for (const nn::Parameter& each : one.layer.parameters()) {
        for (std::size_t n = 0; n < each.gradient.size(); ++n) add(each.gradient[n], n);
      }
      for (std::size_t n = 0; n < dx.span().size(); ++n) add(dx.data()[n], n + 1);
      const double truth = along(double{}), plain = along(float{});
      EXPECT_LE(std::abs(got - truth),
          3 * std::abs(plain - truth) + 4 * static_cast<double>(std::numeric_limits<float>::epsilon()) * magnitude)
          << "direction " << direction;
    }
  }
}

TEST(LatentAttention, StepsOnCachesAreForward) {
  using Form = MultiHeadLatentAttention::Form;
  for (const LatentAttentionConfig& config : latent_configs(24)) {
    Layer one(config, 2, 30);
    const Numbers<double> truth = one.plain<double>();
    const double bound = bound_of(truth, one.plain<float>());
    for (const Form form : {Form::kAuto, Form::kAbsorbed, Form::kMaterialised}) {
      for (const bool pages : {false, true}) {
        KVCache cache(one.layer.cache_config(
            pages ? KVCacheConfig{.layout = CacheLayout::kPaged, .sequences = 2, .page_size = 4, .pages = 16}
                  : KVCacheConfig{.sequences = 2, .capacity = 30}));
        const Mask mask = pages ? Mask::window(100, 0, Align::kBottomRight) : Mask();  // neither hides a token
        const Tensor<float> y = stepped(one.layer, one.x, cache, prefill_and_single, mask, form);
        expect_within(y.span(), truth, bound, form == Form::kAbsorbed ? "absorbed" : "step");
        EXPECT_EQ(cache.bytes(),
            static_cast<std::size_t>((pages ? 64 : 60) * (config.kv_lora_rank + config.qk_rope_head_dim)) *
                sizeof(float))
            << "a token is held once";
      }
    }
  }
}

TEST(LatentAttention, ARingIsAWindow) {
  Layer one(latent_configs(24)[2], 2, 30);
  const Numbers<double> truth = one.plain<double>(6);
  KVCache ring(one.layer.cache_config({.layout = CacheLayout::kRing, .sequences = 2, .window = 6, .max_append = 3}));
  const Tensor<float> y = stepped(one.layer, one.x, ring, [](Index done) { return Index{done % 4 == 0 ? 1 : 3}; });
  expect_within(y.span(), truth, bound_of(truth, one.plain<float>(6)), "ring");
}

TEST(LatentAttention, SequencesOfUnequalLengthStep) {
  const Layer one(latent_configs(24)[1], 2, 5);
  const View<const float, 3> rows = one.x;
  for (const auto form : {MultiHeadLatentAttention::Form::kAbsorbed, MultiHeadLatentAttention::Form::kMaterialised}) {
    // The fifth row of sequence b of x as sequence `sequence` of a cache, whose others get rows of zeros.
    const auto last = [&](Index b, KVCache& cache, Index sequence) {
      nn::LatentStepMemory memory;
      Tensor<float> part({static_cast<Index>(cache.sequences().size()), 1, 24}), y(part.sizes());
      for (Index t = 0; t < 5; ++t) {
        std::copy_n(&rows(b, t, 0), 24, part.data() + sequence * 24);
        one.layer.step(part, y, cache, memory, {}, form);
      }
      return std::vector<float>(y.data() + sequence * 24, y.data() + (sequence + 1) * 24);
    };
    KVCache alone(one.layer.cache_config({.capacity = 5}));
    const std::vector<float> expected = last(0, alone, 0);
    KVCache both(
        one.layer.cache_config({.layout = CacheLayout::kPaged, .max_sequences = 2, .page_size = 4, .pages = 16}));
    (void)last(1, both, 0);
    both.add_sequence();
    const std::vector<float> got = last(0, both, 1);  // products of other numbers of rows: sums in another order
    EXPECT_LT(distance<float>(got, expected), 1e-5) << static_cast<int>(form);
  }
}

TEST(LatentAttention, SameBitsForAnyNumberOfThreadsAndGradientsAreAdded) {
  Layer one(latent_configs(24)[1], 2, 23);
  expect_same_bits_for_threads(
      [&](Context& context) {
        nn::LatentSaved saved;
        Tensor<float> y(one.x.sizes()), dx(y.sizes());
        one.layer.forward(one.x, y, saved, {}, context);
        one.layer.zero_gradients();
        one.layer.backward(one.dy, saved, dx, context);
        const StateDict once = one.layer.gradients();
        one.layer.backward(one.dy, saved, {}, context);  // without dx
        for (const nn::Parameter& each : one.layer.parameters()) {
          const Tensor<float> first = to_f32(once.at(each.name));
          for (std::size_t n = 0; n < each.gradient.size(); ++n)
            EXPECT_FLOAT_EQ(each.gradient[n], 2 * first.span()[n]) << each.name;
        }
        return bits_of(y, dx, once);
      },
      3);
}

TEST(LatentAttention, LoadsItsNames) {
  Layer from(latent_configs(24)[1], 1, 5);
  LatentAttentionConfig other = latent_configs(24)[1];
  other.seed = 9;
  Layer to(other, 1, 5);
  to.layer.load_state_dict(from.layer.state_dict("self_attn."), "self_attn.");
  nn::LatentSaved saved;
  Tensor<float> a(from.x.sizes()), b(from.x.sizes());
  from.layer.forward(from.x, a, saved);
  to.layer.forward(from.x, b, saved);
  EXPECT_TRUE(std::ranges::equal(a.span(), b.span()));
  Layer without(latent_configs(24)[0], 1, 5);
  EXPECT_THROW(without.layer.load_state_dict(from.layer.state_dict()), OptionError) << "q_proj is missing";
}

TEST(LatentAttention, Errors) {
  Layer one(latent_configs(24)[0], 1, 4);
  nn::LatentStepMemory memory;
  Tensor<float> y(one.x.sizes());
  KVCache other({.num_kv_heads = 1, .head_dim = 26, .v_head_dim = 20, .capacity = 8});
  EXPECT_THROW(one.layer.step(one.x, y, other, memory), OptionError) << "values are not in keys";
  KVCache ring(one.layer.cache_config({.layout = CacheLayout::kRing, .window = 3, .max_append = 4}));
  EXPECT_THROW(one.layer.step(one.x, y, ring, memory, {}, MultiHeadLatentAttention::Form::kMaterialised), OptionError);
  one.layer.step(one.x, y, ring, memory);
  LatentAttentionConfig odd = latent_configs(24)[0];
  odd.qk_rope_head_dim = 5;
  EXPECT_THROW(MultiHeadLatentAttention{odd}, OptionError);
  const Index width = y.size(2);
  nn::LatentSaved saved;
  Layer two(latent_configs(24)[0], 2, 4);
  Tensor<float> both(two.x.sizes());
  test::expect_error<ShapeError>(
      [&] {
        two.layer.forward(two.x, View<float, 3>(both.data(), both.view<3>().sizes(), {width, width, 1}), saved);
      },
      {"rows must not overlap"});
  test::expect_error<ShapeError>(
      [&] { one.layer.forward(one.x, View<float, 3>(nullptr, y.view<3>().sizes()), saved); }, {"has no memory"});
  KVCache wide(one.layer.cache_config({.storage = CacheStorage::kF64, .capacity = 8}));
  EXPECT_THROW(one.layer.step(one.x, y, wide, memory), OptionError);
  KVCache shared(one.layer.cache_config({.capacity = 8}));
  Tensor<float> k({1, 1, 2, 26}), v({1, 1, 2, 20});
  EXPECT_THROW(shared.append(k, v), ShapeError) << "v is held in k";
  const Tensor<std::uint8_t> keep({3, 3});
  for (const auto form : {MultiHeadLatentAttention::Form::kAbsorbed, MultiHeadLatentAttention::Form::kMaterialised}) {
    EXPECT_THROW(one.layer.step(one.x, y, shared, memory, Mask::keep(keep, MaskAxes::kQk), form), ShapeError);
    EXPECT_EQ(shared.length(0), 0) << "a refused mask appends nothing";
  }
  LatentAttentionConfig endless = latent_configs(24)[0];
  endless.scale = std::numeric_limits<double>::infinity();
  EXPECT_THROW(MultiHeadLatentAttention{endless}, OptionError);
  one.layer.forward(one.x, y, saved);
  EXPECT_THROW(Layer(latent_configs(24)[2], 1, 4).layer.backward(one.dy, saved, {}), OptionError) << "more heads";
  EXPECT_THROW(Layer(latent_configs(24)[1], 1, 4).layer.backward(one.dy, saved, {}), OptionError) << "low rank";
}

}  // namespace
}  // namespace qkv::test
