// Properties of the outputs: weights that sum to 1, a constant v at any length, strided lse, weights and dbias.
#include <gtest/gtest.h>

#include "qkv/kv_cache.h"
#include "qkv/varlen.h"
#include "support/checks/expect.h"
#include "support/errors.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> class Outputs : public testing::Test {};
TYPED_TEST_SUITE(Outputs, StorageTypes);

template <class T> constexpr double kEpsilon = static_cast<double>(std::numeric_limits<Accumulator<T>>::epsilon());

TYPED_TEST(Outputs, WeightsAndTheSinkSumToOne) {
  using T = TypeParam;
  for (const AttentionCase& each : part_for<T>(pairwise_cases(3e5), 2)) {
    if (each.empty_row != EmptyRow::kZero) continue;
    Problem<T> problem(each);
    // Products of bf16 pairs, which many queries on a cache take too, make lse: the weights are products of floats.
    if (each.cache != CacheKind::kNone) problem.options.bits = Bits::kInvariant;
    for_each_isa(1, [&](Context& context) {
      Result<T> result(problem);
      result.run_forward(problem, context);
      result.run_weights(problem, context);
      const Index kv_len = each.kv_len;
      for (Index row = 0; row < result.lse.count(); ++row) {
        double sum = 0;
        for (Index j = 0; j < kv_len; ++j) sum += static_cast<double>(result.weights.data()[row * kv_len + j]);
        const bool empty = result.lse.data()[row] == -std::numeric_limits<Accumulator<T>>::infinity();
        double sink_mass = 0, sink_error = 0;
        if (problem.sinks.data() != nullptr && !empty) {
          const double sink = static_cast<double>(problem.sinks.data()[row / each.q_len % each.num_heads]);
          const double lse = static_cast<double>(result.lse.data()[row]);
          sink_mass = std::exp(sink - lse);
          sink_error = std::isinf(sink) ? 0 : std::abs(sink) + std::abs(lse);
        }
        // Each weight is rounded, and so is the row's sum, whose chain is kv_len long.
        ASSERT_NEAR(sum + sink_mass, empty ? 0 : 1, (static_cast<double>(kv_len + 4) + sink_error) * kEpsilon<T>)
            << each.name() << " row " << row;
      }
    });
  }
}

/// lse_low is the rounding error of lse, or NaN where it is not computed; with it backward has the bits that it has
/// when it computes coarse rows again.
TYPED_TEST(Outputs, WhatRoundingTookFromLseChangesNoGradient) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Index used = 0, unknown = 0;
  for (AttentionCase each : part_for<T>(pairwise_cases(3e5), 4)) {
    each.fill = Fill::kHugeLogits;
    const Problem<T> problem(each);
    for_each_isa(2, [&](Context& context) {
      Tensor<T> out({each.batch, each.num_heads, each.q_len, each.v_head_dim}), plain(out.sizes());
      Tensor<Sum> lse({each.batch, each.num_heads, each.q_len}), low(lse.sizes()), plain_lse(lse.sizes());
      attention_forward(
          problem.q(), problem.k(), problem.v(), {.out = plain, .lse = plain_lse}, problem.options, context);
      attention_forward(
          problem.q(), problem.k(), problem.v(), {.out = out, .lse = lse, .lse_low = low}, problem.options, context);
      ASSERT_TRUE(same_bits(out, plain)) << each.name();
      ASSERT_TRUE(same_bits(lse, plain_lse)) << each.name();
      for (Index n = 0; n < lse.count(); ++n) {
        const double whole = static_cast<double>(lse.data()[n]), lost = static_cast<double>(low.data()[n]);
        unknown += std::isnan(lost) ? 1 : 0;
        if (std::isnan(lost)) continue;
        // Half an ulp; in f64 lse is a sum of two rounded parts, each below 2^7 or twice lse, and of ln2's own
        // rounding.
        const double limit =
            std::is_same_v<T, double> ? 3 * std::max(std::abs(whole), 128.0) : std::abs(whole) * 0.5000001;
        ASSERT_LE(std::abs(lost), std::isfinite(whole) ? limit * kEpsilon<T> : 0) << each.name();
        used += std::abs(whole) > 16 && lost != 0 ? 1 : 0;
      }
      const auto gradients = [&](const View<const Sum, 3>& lse_low) {
        std::array<Tensor<T>, 3> all{Tensor<T>({each.batch, each.num_heads, each.q_len, each.head_dim}),
            Tensor<T>({each.batch, each.num_kv_heads, each.kv_len, each.head_dim}),
            Tensor<T>({each.batch, each.num_kv_heads, each.kv_len, each.v_head_dim})};
        const AttentionGradients<T> wanted{
            .dq = all[0], .dk = all[1], .dv = all[2], .dlse = problem.dlse, .lse_low = lse_low};
        attention_backward(problem.q(), problem.k(), problem.v(), View<const T, 4>(out), View<const Sum, 3>(lse),
            View<const T, 4>(problem.dout.view), wanted, problem.options, context);
        return all;
      };
      const auto given = gradients(low), computed = gradients({});
      for (std::size_t n = 0; n < 3; ++n) ASSERT_TRUE(same_bits(given[n], computed[n])) << each.name() << " " << n;
    });
  }
  EXPECT_GT(used, 0);
  EXPECT_GT(unknown, 0);
}

TYPED_TEST(Outputs, AConstantVIsReturned) {
  using T = TypeParam;
  for (const Index q_len : {1, 20}) {
    const Index kv_len = q_len == 1 ? 131072 : 30000;
    const Problem<T> problem(
        {.q_len = q_len, .kv_len = kv_len, .head_dim = 8, .v_head_dim = 8, .fill = Fill::kConstantV});
    for_each_isa(2, [&](Context& context) {
      Result<T> result(problem);
      result.run_forward(problem, context);
      for (Index i = 0; i < q_len; ++i) {
        for (Index n = 0; n < 8; ++n) {
          EXPECT_NEAR(number_as<double>(result.out.view(0, 0, i, n)), 1, kIsHalf<T> ? 0 : 2 * kEpsilon<T>);
        }
      }
    });
  }
}

TYPED_TEST(Outputs, StridedLseWeightsAndBiasGradient) {
  using T = TypeParam;
  const Problem<T> problem({2, 3, 3, 21, 37, 8, 8, MaskKind::kNone, BiasKind::kHeads});
  for_each_isa(1, [&](Context& context) {
    Result<T> plain(problem);
    plain.run(problem, context);
    using Sum = Accumulator<T>;
    Tensor<Sum> lse_memory({2, 21, 3});
    const View<Sum, 3> lse(lse_memory.data(), {2, 3, 21}, {63, 1, 3});
    const Stored<Sum> weights({2, 3, 21, 37}, Layout::kPaddedRows), dbias({1, 3, 21, 37}, Layout::kPaddedRows);
    attention_forward(
        problem.q(), problem.k(), problem.v(), {.out = plain.out.view, .lse = lse}, problem.options, context);
    attention_forward(problem.q(), problem.k(), {}, {.weights = weights.view}, problem.options, context);
    AttentionGradients<T> wanted;
    wanted.dbias = dbias.view, wanted.dlse = problem.dlse;
    attention_backward(problem.q(), problem.k(), problem.v(), plain.out.view, lse, problem.dout.view, wanted,
        problem.options, context);
    EXPECT_TRUE(same_bits(copy_as<Sum>(lse), plain.lse));
    EXPECT_TRUE(same_bits(copy_as<Sum>(weights.view), plain.weights));
    EXPECT_TRUE(same_bits(copy_as<Sum>(dbias.view), plain.dbias));
    EXPECT_TRUE(weights.storage.sentinels_intact());
    EXPECT_TRUE(dbias.storage.sentinels_intact());
  });
}

TYPED_TEST(Outputs, NanScoresGiveNanRowsAndNoOthers) {
  using T = TypeParam;
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    Problem<T> problem({.q_len = 70, .kv_len = 150, .head_dim = 8, .v_head_dim = 8, .bias = BiasKind::kFull});
    problem.bias(0, 0, 33, 140) = static_cast<Accumulator<T>>(bad);
    for_each_isa(1, [&](Context& context) {
      Result<T> result(problem);
      result.run_forward(problem, context);
      for (Index i = 0; i < 70; ++i) {
        for (Index n = 0; n < 8; ++n)
          ASSERT_EQ(std::isnan(number_as<double>(result.out.view(0, 0, i, n))), i == 33) << i;
      }
    });
  }
}

/// Whatever a call reads beside its tensors, an output over it is refused before anything is written; so is a tensor
/// that has sizes and no memory.
TEST(OutputsOfCalls, LieApartFromAllThatIsRead) {
  constexpr Index length = 8;
  Tensor<float> x({1, 1, length, 4}), packed({length, 1, 4}), rows({length, 1});
  Tensor<Index> numbers({length});
  const auto floats = [&](Index first) { return reinterpret_cast<float*>(numbers.data() + first); };
  const auto refused = [](const auto& call, std::initializer_list<std::string_view> parts) {
    expect_error<ShapeError>(call, parts);
  };
  const View<float, 4> over(floats(0), {1, 1, 1, 4});
  const View<const float, 4> one = View<const float, 4>(x).sliced(2, 0, 1);
  const KeyValue given = KeyValue::contiguous(x, x, {numbers.data(), 1}),
                 paged = KeyValue::paged(x, x, {numbers.data(), {1, 1}}, {numbers.data() + 7, 1});
  refused([&] { attention_forward(one, given, {.out = over}); }, {"out must share no element with lengths"});
  refused([&] { attention_forward(one, paged, {.out = over}); }, {"out must share no element with the block table"});
  const std::vector<std::int32_t> narrow = {0, length};
  numbers.data()[7] = length;
  const RaggedOffsets offsets{std::span<const Index>(numbers.data() + 6, 2), narrow};
  const View<float, 2> over_rows(floats(4), {length, 1});
  refused([&] { attention_varlen_forward(packed, packed, packed, {.out = packed.view<3>(), .lse = rows}, offsets); },
      {"out must share no element with q"});
  Tensor<float> out({length, 1, 4});
  refused([&] { attention_varlen_forward(packed, packed, packed, {.out = out, .lse = over_rows}, offsets); },
      {"lse must share no element with q_offsets: got lse [8, 1] and q_offsets [2]"});

  // A capture's results are written, and replaced where they do not fit.
  CaptureResult result;
  result.column_mass = Tensor<double>({1, 1, length, length});
  const Capture what{.column_mass = true};
  Tensor<double> answer({1, 1, length, length});
  const View<const double, 4> q = result.column_mass.view<4>();
  refused(
      [&] {
        attention_forward(q, q, q, {.out = answer}, {.capture = {what, result}});
      },
      {"the result of a capture must share no element with q"});
  const Capture gradient{.column_mass = true, .of = CaptureOf::kGradient};
  const View<const double, 3> sums(answer.data(), {1, 1, length});
  refused(
      [&] {
        attention_backward(answer, answer, answer, answer, sums, q, {}, {.capture = {gradient, result}});
      },
      {"the result of a capture must share no element with dout"});

  const View<const float, 4> missing(nullptr, {1, 1, length, 4});
  Tensor<float> good({1, 1, length, 4});
  refused([&] { attention_forward(missing, x, x, {.out = good}); },
      {"q has no memory: got [1, 1, 8, 4] at a null pointer"});
  refused([&] { attention_forward(x, x, missing, {.out = good}); }, {"v has no memory"});
  refused([&] { attention_forward(x, x, x, {.out = View<float, 4>(nullptr, good.view<4>().sizes())}); },
      {"out has no memory"});
  refused(
      [&] {
        attention_forward(x, x, x, {.out = good}, {.bias = View<const float, 4>(nullptr, {1, 1, 8, 8})});
      },
      {"bias has no memory"});
  const Mask mask = Mask::keep(View<const std::uint8_t, 4>(nullptr, {1, 1, length, length}));
  refused([&] { attention_forward(x, x, x, {.out = good}, {.mask = mask}); }, {"the mask has no memory"});
  refused(
      [&] {
        KeyValue::paged(x, x, {nullptr, {1, 1}}, {numbers.data() + 7, 1});
      },
      {"the block table has no memory"});
}

}  // namespace
}  // namespace qkv::test
