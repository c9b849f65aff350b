// Equal bits: results for any number of threads, alone or in a batch, whatever else is requested, with
// NaN in tokens that must not be read. And the purpose of states: a sequence in parts equals the whole sequence.
#include <gtest/gtest.h>

#include "linear/linear_problem.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T> class LinearBits : public testing::Test {};
TYPED_TEST_SUITE(LinearBits, FloatTypes);

template <class T> void expect_same(const LinearResult<T>& a, const LinearResult<T>& b) {
  const auto of_a = a.outputs(), of_b = b.outputs();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t n = 0; n < of_a.size(); ++n) EXPECT_TRUE(same_bits(of_a[n].second, of_b[n].second)) << of_a[n].first;
}

template <class T> Tensor<T> copy_of(const Tensor<T>& tensor) {
  return tensor.data() == nullptr ? Tensor<T>() : tensor.clone();
}

/// With states, normalised where that may be.
LinearCase of_order(LinearCase c, Order order) {
  c.order = order;
  c.normalized = c.may_normalize();
  c.state = true;
  return c;
}

/// Few heads and several segments, where threads share one sequence, and cases of the list.
std::vector<LinearCase> some_cases() {
  std::vector<LinearCase> cases;
  for (const Order order :
      {Order::kFree, Order::kCausal, Order::kCausalDecay, Order::kForgetting, Order::kDeltaDecay, Order::kChannels}) {
    const LinearCase c = of_order({1, 2, 1, 1, 3333, 3333, 6, 5}, order);
    cases.push_back(c);
  }
  for (const Order order : {Order::kDelta, Order::kDeltaDecay, Order::kDeltaChannels,
           Order::kChannels}) {  // threads share one head by its columns
    LinearCase c = of_order({1, 2, 1, 1, 700, 700, 20, 83}, order);
    c.normalized = false;
    cases.push_back(c);
  }
  for (const Order order : {Order::kFree, Order::kCausalDecay, Order::kDeltaDecay,
           Order::kDeltaChannels}) {  // heads of v share q, k, dq and dk
    const LinearCase c = of_order({1, 3, 3, 3, 2100, 2100, 6, 5}, order);
    cases.push_back(c);
  }
  const auto all = linear_pairwise_cases();
  for (std::size_t n = 0; n < all.size(); n += 4) cases.push_back(all[n]);
  return cases;
}

TYPED_TEST(LinearBits, AnyNumberOfThreads) {
  for (const LinearCase& each : some_cases()) {
    SCOPED_TRACE(each.name());
    const LinearProblem<TypeParam> problem(each);
    for (const Isa isa : tested_isas()) {
      Context one({.threads = 1, .isa = isa, .executor = nullptr});
      LinearResult<TypeParam> expected(problem);
      expected.run(problem, one);
      for (const int threads : {2, 3, 5, 8}) {
        SCOPED_TRACE(std::string(isa_name(isa)) + " threads " + std::to_string(threads));
        Context many({.threads = threads, .isa = isa, .executor = nullptr});
        many.impl().region_flops = 0;  // parallel regions, however small the work
        LinearResult<TypeParam> result(problem);
        result.run(problem, many);
        expect_same(result, expected);
      }
    }
  }
}

TYPED_TEST(LinearBits, InvariantBitsAreThoseOfEveryInstructionSet) {
  for (const LinearCase& each : some_cases()) {
    SCOPED_TRACE(each.name());
    const LinearProblem<TypeParam> problem(each);
    const auto run = [&](Context& context) {
      LinearResult<TypeParam> result(problem);
      result.run(problem, context);
      return result;
    };
    expect_on_every_isa(run, expect_same<TypeParam>);
  }
}

TYPED_TEST(LinearBits, ASequenceAloneIsItsPlaceInABatch) {
  using T = TypeParam;
  for (const Order order : {Order::kFree, Order::kCausalDecay, Order::kDeltaDecay, Order::kDeltaChannels}) {
    LinearCase c = of_order({3, 4, 2, 1, 1100, 1100, 7, 9}, order);
    c.layout = Layout::kBthd;
    const LinearProblem<T> problem(c);
    for_each_isa(3, [&](Context& context) {
      LinearResult<T> whole(problem), alone(problem);
      whole.run(problem, context);
      for (Index b = 0; b < c.batch; ++b) {
        const auto part = [&](const auto& view) { return view.is_null() ? view : view.sliced(0, b, b + 1); };
        const auto null3 = [&](const Tensor<T>& tensor) {
          return part(LinearResult<T>::template view_or_null<3>(tensor));
        };
        const auto null4 = [&](const Tensor<T>& tensor) {
          return part(LinearResult<T>::template view_or_null<4>(tensor));
        };
        LinearAttentionOptions<T> options = problem.options;
        options.log_decay = part(options.log_decay), options.log_decay_channels = part(options.log_decay_channels);
        options.beta = part(options.beta);
        options.initial = {.kv = part(options.initial.kv), .z = part(options.initial.z)};
        linear_attention_forward(part(problem.q()), part(problem.k()), part(problem.v()), part(alone.out.view),
            null3(alone.normalizer), options, {.kv = null4(alone.kv), .z = null3(alone.z)}, context);
        LinearAttentionGradients<T> wanted;
        wanted.dq = part(alone.gradients.views[0]), wanted.dk = part(alone.gradients.views[1]);
        wanted.dv = part(alone.gradients.views[2]);
        wanted.dlog_decay = null3(alone.dlog_decay), wanted.dbeta = null3(alone.dbeta);
        wanted.dlog_decay_channels = null4(alone.dchannels);
        wanted.dinitial = {.kv = null4(alone.dkv), .z = null3(alone.dz)};
        wanted.dfinal = {.kv = null4(problem.dkv), .z = null3(problem.dz)};
        linear_attention_backward(part(problem.q()), part(problem.k()), part(problem.v()), part(alone.out.view),
            null3(alone.normalizer), part(problem.dout.view), wanted, options, context);
      }
      expect_same(alone, whole);
    });
  }
}

TYPED_TEST(LinearBits, WhatIsNotAskedForChangesNothing) {
  using T = TypeParam;
  for (const Order order : {Order::kFree, Order::kCausalDecay, Order::kDeltaDecay, Order::kDeltaChannels}) {
    const LinearCase c = of_order({2, 2, 1, 1, 130, 130, 7, 9}, order);
    const LinearProblem<T> problem(c);
    for_each_isa(2, [&](Context& context) {
      LinearResult<T> all(problem), one(problem);
      all.run(problem, context);
      linear_attention_forward(
          problem.q(), problem.k(), problem.v(), one.out.view, View<T, 3>(), problem.options, {}, context);
      EXPECT_TRUE(same_bits(copy_as<T>(one.out.view), copy_as<T>(all.out.view)));
      one.normalizer = copy_of(all.normalizer), one.kv = copy_of(all.kv), one.z = copy_of(all.z);
      const auto null3 = [](const Tensor<T>& tensor) { return LinearResult<T>::template view_or_null<3>(tensor); };
      for (int output = 0; output < 7; ++output) {
        LinearAttentionGradients<T> wanted;
        wanted.dfinal = {.kv = problem.dkv, .z = null3(problem.dz)};
        if (output == 0) wanted.dq = one.gradients.views[0];
        if (output == 1) wanted.dk = one.gradients.views[1];
        if (output == 2) wanted.dv = one.gradients.views[2];
        if (output == 3) wanted.dlog_decay = null3(one.dlog_decay);
        if (output == 4) wanted.dbeta = null3(one.dbeta);
        if (output == 6) wanted.dlog_decay_channels = LinearResult<T>::template view_or_null<4>(one.dchannels);
        if (output == 5) wanted.dinitial = {.kv = one.dkv, .z = null3(one.dz)};
        linear_attention_backward(problem.q(), problem.k(), problem.v(), one.out.view, null3(one.normalizer),
            problem.dout.view, wanted, problem.options, context);
      }
      expect_same(one, all);
    });
  }
}

TYPED_TEST(LinearBits, AccumulateAdds) {
  using T = TypeParam;
  for (const Order order :
      {Order::kFree, Order::kCausalHeadDecay, Order::kDeltaDecay, Order::kHeadChannels, Order::kDeltaChannels}) {
    const LinearCase c = of_order({2, 2, 1, 1, 70, 70, 4, 4}, order);
    const LinearProblem<T> problem(c);
    for_each_isa(1, [&](Context& context) {
      LinearResult<T> once(problem), twice(problem);
      once.run(problem, context);
      twice.run(problem, context);
      twice.backward(problem, context, true);
      const auto a = once.outputs(), b = twice.outputs();
      for (std::size_t n = 0; n < a.size(); ++n) {
        if (a[n].first[0] != 'd') continue;
        for (Index e = 0; e < a[n].second.count(); ++e) {
          const double value = static_cast<double>(a[n].second.data()[e]);
          ASSERT_NEAR(static_cast<double>(b[n].second.data()[e]), 2 * value, sizeof(T) == 4 ? 1e-3 : 1e-11)
              << a[n].first;
        }
      }
    });
  }
}

/// out, dq, dk and dv of the tokens that `visible` names are the same with `spoil` applied to the inputs.
template <class T, class Spoil, class Visible>
void expect_unchanged(const LinearCase& c, const Spoil& spoil, const Visible& visible) {
  for_each_isa(2, [&](Context& context) {
    LinearProblem<T> problem(c);
    LinearResult<T> before(problem), after(problem);
    before.run(problem, context);
    spoil(problem);
    after.run(problem, context);
    const std::array<View<T, 4>, 4> a = {
        before.out.view, before.gradients.views[0], before.gradients.views[1], before.gradients.views[2]};
    const std::array<View<T, 4>, 4> b = {
        after.out.view, after.gradients.views[0], after.gradients.views[1], after.gradients.views[2]};
    for (std::size_t n = 0; n < 4; ++n) {
      for (Index t = 0; t < c.kv_len; ++t) {
        if (!visible(n, t)) continue;
        for (Index e = 0; e < a[n].size(3); ++e)
          ASSERT_EQ(a[n](0, 0, t, e), b[n](0, 0, t, e)) << n << " " << t << " " << e;
      }
    }
  });
}

TYPED_TEST(LinearBits, NoTokenSeesOneThatItMayNot) {
  using T = TypeParam;
  const auto row = [](const View<T, 4>& view, Index t, double value) {
    for (Index e = 0; e < view.size(3); ++e) view(0, 0, t, e) = static_cast<T>(value);
  };
  for (const Order order :
      {Order::kCausal, Order::kCausalDecay, Order::kDelta, Order::kChannels, Order::kDeltaChannels}) {
    for (const Index at : {0, 5, 63, 70, 129}) {
      LinearCase c{1, 1, 1, 1, 130, 130, 12, 20};
      c.order = order, c.normalized = false;
      SCOPED_TRACE(c.name() + " at " + std::to_string(at));
      // A key and value reach later queries, and earlier keys only through the delta rule.
      const auto key = [&](LinearProblem<T>& p) { row(p.k(), at, std::nan("")), row(p.v(), at, HUGE_VAL); };
      const bool delta = c.delta();
      expect_unchanged<T>(c, key, [&](std::size_t n, Index t) { return n < 2 ? t < at : !delta && t != at; });
      // A query and its gradient affect itself and the keys that it attended to.
      const auto query = [&](LinearProblem<T>& p) { row(p.q(), at, std::nan("")), row(p.dout.view, at, std::nan("")); };
      expect_unchanged<T>(c, query, [&](std::size_t n, Index t) { return n < 2 ? t != at : t > at; });
    }
  }
}

/// A step reads and writes states in place where their rows are whole, otherwise through a copy.
TYPED_TEST(LinearBits, AStepReadsStatesOfAnyStrides) {
  using T = TypeParam;
  for (const auto& [order, width, v_width] : {std::tuple<Order, Index, Index>{Order::kDeltaDecay, 9, 70},
           {Order::kDeltaChannels, 9, 70}, {Order::kDeltaDecay, 32, 48}}) {
    LinearCase c = of_order({2, 4, 4, 2, 1, 1, width, v_width}, order);
    c.normalized = false;
    const LinearProblem<T> problem(c);
    for_each_isa(2, [&, width = width, v_width = v_width](Context& context) {
      LinearResult<T> expected(problem), result(problem);
      expected.forward(problem, context);
      Tensor<T> before({2, 4, v_width, width}), after({2, 4, v_width, width});
      const auto turned = [](Tensor<T>& x) { return x.template view<4>().transposed(2, 3); };
      const View<T, 4> from = turned(before);
      for_each_index(from.sizes(),
          [&](Index b, Index h, Index f, Index e) { from(b, h, f, e) = problem.options.initial.kv(b, h, f, e); });
      LinearAttentionOptions<T> options = problem.options;
      options.initial.kv = from;
      linear_attention_forward(problem.q(), problem.k(), problem.v(), result.out.view, View<T, 3>(), options,
          {.kv = turned(after)}, context);
      EXPECT_TRUE(same_bits(copy_as<T>(result.out.view), copy_as<T>(expected.out.view)));
      EXPECT_TRUE(same_bits(copy_as<T>(turned(after)), expected.kv));
    });
  }
}

/// Heads of queries are read from the state and leave it alone; there may be none.
TYPED_TEST(LinearBits, AStepWithoutQueriesIsItsState) {
  using T = TypeParam;
  Random random(3);
  Tensor<T> q({1, 2, 1, 16}), k({1, 2, 1, 16}), v({1, 2, 1, 64}), out({1, 2, 1, 64});
  for (Tensor<T>* each : {&q, &k, &v}) {
    for (T& x : each->span()) x = static_cast<T>(random.symmetric());
  }
  const LinearAttentionOptions<T> options{.feature_map = FeatureMap::kIdentity, .causal = true, .normalized = false};
  const Tensor<T> no_q({1, 0, 1, 16});
  Tensor<T> no_out({1, 0, 1, 64});
  for_each_isa(1, [&](Context& context) {
    Tensor<T> state({1, 2, 16, 64}), alone({1, 2, 16, 64});
    linear_attention_forward(q, k, v, out, View<T, 3>{}, options, LinearState<T>{.kv = state}, context);
    linear_attention_forward(no_q, k, v, no_out, View<T, 3>{}, options, LinearState<T>{.kv = alone}, context);
    EXPECT_TRUE(same_bits(state, alone));
  });
}

TYPED_TEST(LinearBits, ASequenceInPartsIsTheWhole) {
  using T = TypeParam;
  for (const Order order : {Order::kCausal, Order::kCausalDecay, Order::kDeltaDecay, Order::kDeltaChannels}) {
    for (const Index step : {1, 50, 200}) {
      const LinearCase c = of_order({2, 2, 1, 1, 260, 260, 9, 6}, order);
      const LinearProblem<T> problem(c);
      for_each_isa(2, [&](Context& context) {
        LinearResult<T> whole(problem), parts(problem);
        whole.forward(problem, context);
        parts.kv = problem.kv.clone();
        if (c.normalized) parts.z = problem.z.clone();
        LinearAttentionOptions<T> options = problem.options;
        const LinearState<T> state{.kv = parts.kv, .z = LinearResult<T>::template view_or_null<3>(parts.z)};
        options.initial = {.kv = state.kv, .z = state.z};  // updated in place
        for (Index t = 0; t < c.kv_len; t += step) {
          const auto part = [&](const auto& view) { return view.sliced(2, t, std::min(c.kv_len, t + step)); };
          if (c.decays() && !c.channels()) options.log_decay = part(problem.options.log_decay);
          if (c.channels()) options.log_decay_channels = part(problem.options.log_decay_channels);
          if (c.delta()) options.beta = part(problem.options.beta);
          linear_attention_forward(part(problem.q()), part(problem.k()), part(problem.v()), part(parts.out.view),
              View<T, 3>(), options, state, context);
        }
        parts.normalizer = copy_of(whole.normalizer);
        const auto a = whole.outputs(), b = parts.outputs();
        for (std::size_t n = 0; n < a.size(); ++n) {
          if (a[n].first[0] == 'd') continue;
          for (Index e = 0; e < a[n].second.count(); ++e) {
            const double want = static_cast<double>(a[n].second.data()[e]);
            ASSERT_NEAR(static_cast<double>(b[n].second.data()[e]), want,
                (sizeof(T) == 4 ? 1e-4 : 1e-12) * (1 + std::abs(want)))
                << a[n].first;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace qkv::test
