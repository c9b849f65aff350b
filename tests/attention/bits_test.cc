// What must hold to the last bit: any number of threads, alone or in a batch, with or without lse and weights, whatever lies
// behind a mask or in the future.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "support/checks/expect.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T>
class Bits : public testing::Test {};
TYPED_TEST_SUITE(Bits, StorageTypes);

/// Every output of a run as contiguous tensors: out, lse, weights, dq, dk, dv, dbias, dsinks, dposition. 16 bits are
/// widened, which loses nothing.
template <class T, class Sum = Accumulator<T>>
std::vector<Tensor<Sum>> outputs_of(const Result<T>& result) {
  std::vector<Tensor<Sum>> all;
  all.push_back(copy_as<Sum>(result.out.view));
  all.push_back(result.lse.clone());
  all.push_back(result.weights.clone());
  for (const View<T, 4>& view : result.gradients.views) all.push_back(copy_as<Sum>(view));
  for (const Tensor<Sum>* tensor : {&result.dbias, &result.dsinks, &result.dposition}) all.push_back(tensor->clone());
  return all;
}

inline constexpr std::array kOutputNames = {"out", "lse", "weights", "dq", "dk", "dv", "dbias", "dsinks", "dposition"};

template <class T>
void expect_same(const std::vector<Tensor<T>>& a, const std::vector<Tensor<T>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) EXPECT_TRUE(same_bits(a[n], b[n])) << kOutputNames[n];
}

template <class T>
std::vector<Tensor<Accumulator<T>>> run_all(const Problem<T>& problem, Context& context) {
  Result<T> result(problem);
  result.run(problem, context);
  return outputs_of(result);
}

/// Every `step`-th case of the pairwise list, and long ones.
template <class T>
std::vector<AttentionCase> some_cases(std::size_t step) {
  std::vector<AttentionCase> some = part_for<T>(pairwise_cases(), step);
  some.push_back({.batch = 1,
                  .num_heads = 2,
                  .num_kv_heads = 1,
                  .q_len = 300,
                  .kv_len = 700,
                  .head_dim = 20,
                  .v_head_dim = 20,
                  .mask = MaskKind::kCausalBottomRight,
                  .bias = BiasKind::kKeys});
  some.push_back({.batch = 3,
                  .num_heads = 1,
                  .num_kv_heads = 1,
                  .q_len = 1,
                  .kv_len = 3000,
                  .head_dim = 16,
                  .v_head_dim = 16,
                  .bias = BiasKind::kSquare,
                  .dropout = 0.1});
  return some;
}

TYPED_TEST(Bits, AnyNumberOfThreads) {
  for (const AttentionCase& each : some_cases<TypeParam>(24)) {
    SCOPED_TRACE(each.name());
    const Problem<TypeParam> problem(each);
    for (const Isa isa : tested_isas()) {
      Context one({.threads = 1, .isa = isa, .executor = nullptr});
      const auto expected = run_all(problem, one);
      for (int threads = 2; threads <= 8; ++threads) {
        SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(threads));
        Context many({.threads = threads, .isa = isa, .executor = nullptr});
        many.impl().region_flops = 0;  // regions even for little work
        expect_same(run_all(problem, many), expected);
      }
    }
  }
}

TYPED_TEST(Bits, CallAfterCall) {
  const Problem<TypeParam> problem({.batch = 2,
                                    .num_heads = 2,
                                    .num_kv_heads = 1,
                                    .q_len = 150,
                                    .kv_len = 260,
                                    .head_dim = 24,
                                    .v_head_dim = 24,
                                    .mask = MaskKind::kWindow,
                                    .dropout = 0.1});
  for_each_isa(3, [&](Context& context) {
    const auto expected = run_all(problem, context);
    for (int repeat = 0; repeat < 20; ++repeat) expect_same(run_all(problem, context), expected);
  });
}

TYPED_TEST(Bits, WhatLiesBehindAMaskIsInvisible) {
  using T = TypeParam;
  int compared = 0;
  for (AttentionCase each : pairwise_cases()) {
    if (each.fill != Fill::kNanBehindMask || each.work() > 1e6) continue;
    each.empty_row = EmptyRow::kZero;  // the two fills read masked values
    SCOPED_TRACE(each.name());
    Problem<T> problem(each);
    std::vector<std::vector<Tensor<Accumulator<T>>>> poisoned;
    for_each_isa(2, [&](Context& context) { poisoned.push_back(run_all(problem, context)); });
    Index replaced = 0;
    for (const View<T, 4>& view : {problem.k(), problem.v()}) {
      for (Index b = 0; b < view.size(0); ++b) {
        for (Index h = 0; h < view.size(1); ++h) {
          for (Index t = 0; t < view.size(2); ++t) {
            for (Index n = 0; n < view.size(3); ++n) {
              if (!std::isfinite(number_as<double>(view(b, h, t, n)))) view(b, h, t, n) = number_as<T>(0.25), ++replaced;
            }
          }
        }
      }
    }
    compared += replaced > 0;
    std::size_t isa = 0;
    for_each_isa(2, [&](Context& context) { expect_same(run_all(problem, context), poisoned[isa++]); });
  }
  EXPECT_GE(compared, 20) << "the list must hold enough cases that hide something";
}

TYPED_TEST(Bits, ACausalPrefixIgnoresTheFuture) {
  using T = TypeParam;
  for (const Index prefix : {1, 40, 128, 199}) {
    for_each_isa(2, [&](Context& context) {
      Problem<T> problem({.batch = 1,
                          .num_heads = 2,
                          .num_kv_heads = 2,
                          .q_len = 200,
                          .kv_len = 200,
                          .head_dim = 9,
                          .v_head_dim = 9,
                          .mask = MaskKind::kCausal});
      const auto before = run_all(problem, context);
      for (const View<T, 4>& view : {problem.q(), problem.k(), problem.v()}) {
        for (Index h = 0; h < 2; ++h) {
          for (Index t = prefix; t < 200; ++t) {
            for (Index n = 0; n < 9; ++n) view(0, h, t, n) = t % 3 == 0 ? kQuietNan<T> : number_as<T>(1e3);
          }
        }
      }
      const auto after = run_all(problem, context);
      const View<const Accumulator<T>, 4> out_before = before[0], out_after = after[0];
      for (Index h = 0; h < 2; ++h) {
        for (Index i = 0; i < prefix; ++i) {
          for (Index n = 0; n < 9; ++n) ASSERT_EQ(out_before(0, h, i, n), out_after(0, h, i, n)) << h << " " << i << " " << n;
        }
      }
    });
  }
}

TYPED_TEST(Bits, ASequenceAloneIsItsPlaceInABatch) {
  using T = TypeParam;
  const Index batch = 3, num_heads = 4, q_len = 37, kv_len = 150, head_dim = 20;
  const std::vector<Index> offsets = {113, 20, -5}, lengths = {150, 64, 17};
  const Problem<T> problem({.batch = batch,
                            .num_heads = num_heads,
                            .num_kv_heads = 2,
                            .q_len = q_len,
                            .kv_len = kv_len,
                            .head_dim = head_dim,
                            .v_head_dim = head_dim,
                            .bias = BiasKind::kFull,
                            .layout = Layout::kBthd});
  const auto masked = [&](std::span<const Index> o, std::span<const Index> l, Index first, View<const Accumulator<T>, 4> bias) {
    return AttentionOptions{.mask = Mask::causal(o) & Mask::key_lengths(l),
                            .bias = bias,
                            .scale = {},
                            .softcap = 0,
                            .empty_row = EmptyRow::kZero,
                            .dropout = {.p = 0.25, .seed = 99, .training = true, .first_sequence = first}};
  };
  for_each_isa(2, [&](Context& context) {
    Result<T> whole(problem);
    const auto run = [&](const Result<T>& into, Index begin, Index end, const AttentionOptions& options) {
      const auto part = [&](const auto& view) { return view.sliced(0, begin, end); };
      const View<Accumulator<T>, 3> lse(const_cast<Accumulator<T>*>(into.lse.data()), {batch, num_heads, q_len});
      const View<Accumulator<T>, 4> dbias(const_cast<Accumulator<T>*>(into.dbias.data()), problem.bias.sizes());
      attention_forward(part(problem.q()), part(problem.k()), part(problem.v()), {.out = part(into.out.view), .lse = part(lse)},
                        options, context);
      AttentionGradients<T> wanted;
      wanted.dq = part(into.gradients.views[0]), wanted.dk = part(into.gradients.views[1]);
      wanted.dv = part(into.gradients.views[2]), wanted.dbias = part(dbias);
      attention_backward(part(problem.q()), part(problem.k()), part(problem.v()), part(into.out.view), part(lse),
                         part(problem.dout.view), wanted, options, context);
    };
    run(whole, 0, batch, masked(offsets, lengths, 0, problem.bias));
    Result<T> alone(problem);
    for (Index b = 0; b < batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      run(alone, b, b + 1, masked({&offsets[at], 1}, {&lengths[at], 1}, b, problem.bias.sliced(0, b, b + 1)));
    }
    whole.weights = alone.weights.clone();  // not asked for here
    expect_same(outputs_of(alone), outputs_of(whole));
  });
}

TYPED_TEST(Bits, WhatIsNotAskedForChangesNothing) {
  using T = TypeParam;
  const Problem<T> problem({.batch = 2,
                            .num_heads = 2,
                            .num_kv_heads = 1,
                            .q_len = 90,
                            .kv_len = 140,
                            .head_dim = 24,
                            .v_head_dim = 17,
                            .mask = MaskKind::kKeepDense,
                            .bias = BiasKind::kHeads,
                            .dropout = 0.1});
  for_each_isa(2, [&](Context& context) {
    Result<T> all(problem);
    all.run(problem, context);
    const auto expected = outputs_of(all);
    Result<T> one(problem);
    attention_forward(problem.q(), problem.k(), problem.v(), {.out = one.out.view}, problem.options, context);
    EXPECT_TRUE(same_bits(copy_as<Accumulator<T>>(one.out.view), expected[0])) << "without lse";
    for (int output = 0; output < 4; ++output) {
      AttentionGradients<T> wanted;
      wanted.dlse = problem.dlse;
      if (output == 0) wanted.dq = one.gradients.views[0];
      if (output == 1) wanted.dk = one.gradients.views[1];
      if (output == 2) wanted.dv = one.gradients.views[2];
      if (output == 3) wanted.dbias = one.dbias;
      attention_backward(problem.q(), problem.k(), problem.v(), all.out.view, all.lse, problem.dout.view, wanted,
                         problem.options, context);
    }
    one.lse = all.lse.clone(), one.weights = all.weights.clone();
    expect_same(outputs_of(one), expected);
  });
}

TYPED_TEST(Bits, AnUnboundedWindowIsNoMask) {
  using T = TypeParam;
  Problem<T> problem(
      {.batch = 1, .num_heads = 2, .num_kv_heads = 2, .q_len = 70, .kv_len = 150, .head_dim = 16, .v_head_dim = 16});
  for_each_isa(1, [&](Context& context) {
    problem.options.mask = Mask();
    const auto expected = run_all(problem, context);
    problem.options.mask = Mask::window(-1, -1, Align::kBottomRight);
    expect_same(run_all(problem, context), expected);
  });
}

}  // namespace
}  // namespace qkv::test
