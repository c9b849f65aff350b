// Bounds on second order, computed as expect.h's are: error <= 4 x error(naive, same type) + 4 eps A, A the expression
// with every term made positive. With w, S, slopes as in magnitude.h and A(x) for the positive form of x:
//   A(tx) = |scale| (|uq||k| + |q||uk|)     A(ts) = slope A(tx) + |ubias|     A(mean) = sum_j w A(ts)
//   A(tout) = z w ((A(ts) + A(mean)) |v| + |uv|)
//   A(push) = z |dout||v| + A(delta)        A(e) = (A(ts) + A(mean)) A(push) + z |dout||uv|
//   A(hs) = w (A(e) + sum_j w A(e))         A(hx) = A(hs) slope + w A(push) bend A(tx)       A(dx) = w A(push) slope
#pragma once

#include "support/checks/expect.h"
#include "support/checks/magnitude.h"
#include "support/checks/second_problem.h"
#include "support/isas.h"

namespace qkv::test {

struct SecondMagnitude {
  Tensor<double> out, lse, q, k, v, bias, sinks{},
      position{};  // bias [B, H, Tq, Tk]; out and lse also of gdout and gdlse
};

template <class C> class SecondMagnitudeMaker {
 public:
  SecondMagnitudeMaker(const SecondInput<C>& input, const reference::Forward<C>& exact)
      : input_(input),
        tangents_(input.tangents()),
        lse_(exact.lse),
        first_(magnitude_of(input.first, exact, false)),
        a_{Tensor<double>(exact.out.sizes()), Tensor<double>(exact.lse.sizes()), Tensor<double>(input.first.q.sizes()),
            Tensor<double>(input.first.k.sizes()), Tensor<double>(input.first.v.sizes()),
            Tensor<double>(exact.weights.sizes())} {
    if (input.first.position_table.data() != nullptr) a_.position = Tensor<double>(input.first.position_table.sizes());
    if (input.first.sinks.data() != nullptr) a_.sinks = Tensor<double>(input.first.sinks.sizes());
  }

  SecondMagnitude make() && {
    const View<const C, 4> q = input_.first.q;
    for_each_index(q.sizes(), [&](Index b, Index h, Index i) { row(b, h, i); });
    return std::move(a_);
  }

 private:
  /// One pair: how large its parts may be.
  struct Pair {
    double weight = 0, factor = 1, slope = 1, bend = 0, product_rate = 0, rate = 0, push = 0, through_value = 0;
  };

  Pair pair(Index b, Index h, Index i, Index g, Index j) const {
    const ReferenceInput<C>& in = input_.first;
    const View<const double, 4> weights = first_.weights;
    Pair p;
    p.weight = weights(b, h, i, j);
    if (p.weight == 0) return p;  // not kept, or so small that nothing of it shows
    const View<const C, 4> q = in.q, k = in.k, v = in.v, dout = in.dout;
    const double scale = in.options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))),
                 cap = in.options.softcap;
    p.factor = in.options.factor ? in.options.factor(b, h, i, j) : 1;
    if (cap > 0) {
      double x = 0;
      for (Index n = 0; n < q.size(3); ++n) x += scale * static_cast<double>(q(b, h, i, n) * k(b, g, j, n));
      const double terms =
          (1 + std::sqrt(static_cast<double>(q.size(3))) / 4) * std::abs(scale) * absolute_dot(q, b, h, i, k, g, j);
      const double tanh = std::tanh(x / cap), slope = 1 - tanh * tanh,
                   moved = slope * terms / cap;  // of tanh, in units of eps
      p.slope = 1 + tanh * tanh + std::abs(tanh) * moved;
      p.bend = 2 * (std::abs(tanh) * (1 + tanh * tanh) + std::abs(1 - 3 * tanh * tanh) * moved) / cap;
    }
    p.product_rate =
        std::abs(scale) * (absolute_dot(tangents_.q, b, h, i, k, g, j) + absolute_dot(q, b, h, i, tangents_.k, g, j));
    p.rate = p.slope * p.product_rate;
    p.rate += std::abs(bias_of(tangents_.bias, b, h, i, j));
    if (!tangents_.position_table.is_null()) {
      const double rate = static_cast<double>(tangents_.position_table(in.options.position_row(i, j), h));
      p.rate += std::abs(in.options.position_factor(i, j) * rate);
    }
    p.push = p.factor * absolute_dot(dout, b, h, i, v, g, j);
    p.through_value = p.factor * absolute_dot(dout, b, h, i, tangents_.v, g, j);
    return p;
  }

  /// The sink's weight, with what rounding of its logit does to it; 0 without a sink.
  double sink_weight(Index b, Index h, Index i) const {
    const View<const C, 1> sinks = input_.first.options.sinks;
    if (sinks.is_null()) return 0;
    const double sink = static_cast<double>(sinks(h)), lse = static_cast<double>(lse_(b, h, i));
    const double weight = std::exp(sink - lse);
    return weight > 0 ? weight * (1 + (std::abs(sink) + std::abs(lse)) / 4) : 0;
  }

  /// An empty row: its fill has no scores, so that only the values' own tangents move it (kMean).
  void fill_row(Index b, Index h, Index i, Index g) {
    const ReferenceInput<C>& in = input_.first;
    const View<const C, 4> uv = tangents_.v;
    const View<const double, 4> weights = first_.weights;
    const View<double, 4> out = a_.out;
    for (Index j = 0; j < in.k.size(2) && !uv.is_null(); ++j) {
      if (!(weights(b, h, i, j) > 0)) continue;
      const double weight = (in.options.factor ? in.options.factor(b, h, i, j) : 1) * weights(b, h, i, j);
      for (Index n = 0; n < uv.size(3); ++n) out(b, h, i, n) += weight * static_cast<double>(std::abs(uv(b, g, j, n)));
    }
  }

  void row(Index b, Index h, Index i) {
    const ReferenceInput<C>& in = input_.first;
    const View<const C, 4> q = in.q, k = in.k, v = in.v, dout = in.dout, uq = tangents_.q, uk = tangents_.k,
                           uv = tangents_.v;
    const View<const C, 3> dlse = in.dlse;
    const View<const double, 4> first_out = first_.out;
    const View<double, 4> out = a_.out, gq = a_.q, gk = a_.k, gv = a_.v, gbias = a_.bias;
    const View<double, 3> lse = a_.lse;
    const Index g = h / (q.size(1) / k.size(1)), kv_len = k.size(2);
    const double scale = std::abs(in.options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))));
    const auto size_of = [](C x) { return static_cast<double>(std::abs(x)); };
    if (lse_(b, h, i) == -std::numeric_limits<C>::infinity()) {
      fill_row(b, h, i, g);
      return;
    }
    std::vector<Pair> pairs;
    double sink_rate = 0, mean = 0, delta = size_of(dlse(b, h, i)), moment = 0;
    for (Index n = 0; n < v.size(3); ++n) delta += size_of(dout(b, h, i, n)) * first_out(b, h, i, n);
    for (Index j = 0; j < kv_len; ++j) {
      pairs.push_back(pair(b, h, i, g, j));
      mean += pairs.back().weight * pairs.back().rate;
    }
    const double sink = sink_weight(b, h, i);  // a key of value 0
    if (sink > 0 && !tangents_.sinks.is_null()) sink_rate = size_of(tangents_.sinks(h));
    mean += sink * sink_rate;
    lse(b, h, i) = mean;
    const auto e = [&](const Pair& p) { return (p.rate + mean) * (p.push + delta) + p.through_value; };
    for (const Pair& p : pairs) moment += p.weight * (p.weight == 0 ? 0 : e(p));
    moment += sink * (sink_rate + mean) * delta;
    if (a_.sinks.data() != nullptr) a_.sinks.data()[h] += sink * ((sink_rate + mean) * delta + moment);
    for (Index j = 0; j < kv_len; ++j) {
      const Pair& p = pairs[static_cast<std::size_t>(j)];
      if (p.weight == 0) continue;
      const double hs = p.weight * (e(p) + moment), ds = p.weight * (p.push + delta), dx = ds * p.slope;
      const double hx = hs * p.slope + ds * p.bend * p.product_rate;
      gbias(b, h, i, j) = hs;
      if (a_.position.data() != nullptr) {
        a_.position.data()[in.options.position_row(i, j) * q.size(1) + h] +=
            std::abs(in.options.position_factor(i, j)) * hs;
      }
      for (Index n = 0; n < v.size(3); ++n) {
        const double moved = uv.is_null() ? 0 : size_of(uv(b, g, j, n));
        out(b, h, i, n) += p.factor * p.weight * ((p.rate + mean) * size_of(v(b, g, j, n)) + moved);
        gv(b, g, j, n) += p.factor * p.weight * (p.rate + mean) * size_of(dout(b, h, i, n));
      }
      for (Index n = 0; n < q.size(3); ++n) {
        gq(b, h, i, n) += scale * (hx * size_of(k(b, g, j, n)) + dx * (uk.is_null() ? 0 : size_of(uk(b, g, j, n))));
        gk(b, g, j, n) += scale * (hx * size_of(q(b, h, i, n)) + dx * (uq.is_null() ? 0 : size_of(uq(b, h, i, n))));
      }
    }
  }

  const SecondInput<C>& input_;
  reference::Tangents<C> tangents_;
  View<const C, 3> lse_;
  Magnitude first_;
  SecondMagnitude a_;
};

/// Everything that a problem of second order must give.
template <class T> class SecondExpectation {
 public:
  explicit SecondExpectation(const SecondProblem<T>& problem) {
    using C = Wider<T>;
    const SecondInput<C> wide = problem.template reference_input<C>();
    const reference::Forward<C> forward = wide.first.forward();
    reference::DoubleBackward<C> exact = wide.double_backward(forward);
    const reference::DoubleBackward<T> naive = problem.template reference_input<T>().double_backward();
    const SecondMagnitude a = SecondMagnitudeMaker<C>(wide, forward).make();
    constexpr double kShare = 4;  // of the naive form's error: 2 for forward, 3 for its gradients
    const auto add = [&](Tensor<C> x, const Tensor<T>& rough, const Tensor<double>& size) {
      expected_.emplace_back(std::move(x), rough, size, kShare);
    };
    const auto of_bias = [&problem](const auto& full) {
      const View<T, 4>& bias = problem.first.bias;
      return reference::reduce_to_bias(full, bias.is_null() ? typename View<T, 4>::Sizes{1, 1, 1, 1} : bias.sizes());
    };
    add(exact.dout.clone(), naive.dout, a.out);  // double backward gives forward mode's as gradients of dout and dlse
    add(exact.dlse.clone(), naive.dlse, a.lse);
    add(std::move(exact.dout), naive.dout, a.out);
    add(std::move(exact.dlse), naive.dlse, a.lse);
    add(std::move(exact.q), naive.q, a.q);
    add(std::move(exact.k), naive.k, a.k);
    add(std::move(exact.v), naive.v, a.v);
    add(std::move(exact.position_table), naive.position_table, a.position);
    add(std::move(exact.sinks), naive.sinks, a.sinks);
    add(of_bias(exact.bias), of_bias(naive.bias), of_bias(a.bias));
  }

  testing::AssertionResult holds(const SecondResult<T>& result, const std::string& name, Worst& worst) const {
    const std::vector<Tensor<T>> outputs = result.outputs();
    for (std::size_t n = 0; n < outputs.size(); ++n) {
      if (auto ok = within(expected_[n], outputs[n], kSecondNames[n], name, worst); !ok) return ok;
    }
    return testing::AssertionSuccess();
  }

 private:
  std::vector<Expected<T>> expected_;
};

/// One case on every instruction set.
template <class T> void check_second_case(const AttentionCase& each, Worst& worst) {
  SCOPED_TRACE(each.name());
  const Problem<T> first(each);
  const SecondProblem<T> problem(first);
  const SecondExpectation<T> expectation(problem);
  for_each_isa(1, [&](Context& context) {
    SecondResult<T> result(problem);
    result.run(problem, context);
    EXPECT_TRUE(expectation.holds(result, each.name() + " " + std::string(isa_name(context.isa())), worst));
    EXPECT_TRUE(result.sentinels_intact()) << "an element outside the outputs was written";
  });
}

}  // namespace qkv::test
