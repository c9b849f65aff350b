// A case of second order: the case's problem, tangents of its inputs, what the reference makes of both, and what the
// library gave. Not: bounds (second_expect.h).
#pragma once

#include "qkv/derivatives.h"
#include "reference/second_order.h"
#include "support/problem.h"
#include "support/random.h"

namespace qkv::test {

/// What the reference computes from, in the type C of its arithmetic.
template <class C> struct SecondInput {
  ReferenceInput<C> first;
  Tensor<C> q, k, v, bias, sinks, position_table{};  // tangents; those not given are empty

  reference::Tangents<C> tangents() const {
    const auto view = [](const Tensor<C>& tensor) {
      return tensor.rank() == 0 ? View<const C, 4>{} : tensor.template view<4>();
    };
    return {view(q), view(k), view(v), view(bias), sinks.rank() == 0 ? View<const C, 1>{} : View<const C, 1>(sinks),
        position_table.rank() == 0 ? View<const C, 2>{} : View<const C, 2>(position_table)};
  }
  reference::Jvp<C> jvp() const {
    return reference::attention_jvp<C>(first.q, first.k, first.v, tangents(), first.options);
  }
  reference::DoubleBackward<C> double_backward() const {
    return reference::attention_double_backward<C>(
        first.q, first.k, first.v, first.dout, first.dlse, tangents(), first.options);
  }
  reference::DoubleBackward<C> double_backward(const reference::Forward<C>& forward) const {
    return reference::attention_double_backward<C>(
        first.q, first.k, first.v, first.dout, first.dlse, tangents(), first.options, forward);
  }
};

template <class T> struct SecondProblem {
  Problem<T> first;
  Triple<T> moved;        // tangents of q, k, v, in the case's layout
  Tensor<T> bias_memory;  // of the bias
  Tensor<T> sinks_memory, position_memory;
  AttentionTangents<T> tangents;

  explicit SecondProblem(const AttentionCase& attention_case)
      : first(attention_case), moved({first.q().sizes(), first.k().sizes(), first.v().sizes()}, attention_case.layout) {
    Random random(attention_case.seed + 4711);
    const auto fill = [&random](const View<T, 4>& view, const View<T, 4>& of) {
      for_each_index(view.sizes(), [&](Index b, Index h, Index t, Index n) {
        const T x = static_cast<T>(random.symmetric());
        // hidden: as wild as what it is the tangent of
        view(b, h, t, n) = std::isfinite(of(b, h, t, n)) ? x : of(b, h, t, n);
      });
    };
    fill(moved.views[0], first.q());
    fill(moved.views[1], first.k());
    fill(moved.views[2], first.v());
    if (!first.bias.is_null()) {
      bias_memory = Tensor<T>(std::vector<Index>(first.bias.sizes().begin(), first.bias.sizes().end()));
      const View<T, 4> rates = bias_memory;
      for_each_index(rates.sizes(), [&](Index b, Index h, Index i, Index j) {
        const T x = static_cast<T>(random.symmetric());
        rates(b, h, i, j) = first.bias(b, h, i, j) == -std::numeric_limits<T>::infinity() ? kQuietNan<T> : x;
      });
    }
    if (first.sinks.data() != nullptr) {
      sinks_memory = Tensor<T>(first.sinks.sizes());
      for (Index h = 0; h < sinks_memory.count(); ++h) {
        const T x = static_cast<T>(random.symmetric());
        sinks_memory.data()[h] = std::isfinite(first.sinks.data()[h]) ? x : kQuietNan<T>;
      }
      if (attention_case.seed % 4 != 1) tangents.sinks = sinks_memory;
    }
    if (first.position_table.data() != nullptr) {
      position_memory = Tensor<T>(first.position_table.sizes());
      for (T& rate : position_memory.span()) rate = static_cast<T>(random.symmetric());
      if (attention_case.seed % 4 != 2) tangents.position_bias = position_memory;
    }
    // Some cases leave tangents out; at least one is given.
    const std::uint64_t style = attention_case.seed % 5;
    if (style != 2) tangents.q = moved.views[0];
    if (style != 1) tangents.k = moved.views[1];
    if (style == 0 || style > 2) tangents.v = moved.views[2];
    if (style < 4 && bias_memory.rank() > 0) tangents.bias = bias_memory;
  }

  template <class C> SecondInput<C> reference_input() const {
    const auto copy = [](const View<const T, 4>& view) { return view.is_null() ? Tensor<C>() : copy_as<C>(view); };
    SecondInput<C> input{first.template reference_input<C>(), copy(tangents.q), copy(tangents.k), copy(tangents.v),
        copy(tangents.bias), {}};
    if (!tangents.sinks.is_null()) input.sinks = Tensor<C>(sinks_memory.sizes());
    for (Index h = 0; h < input.sinks.count(); ++h) input.sinks.data()[h] = static_cast<C>(tangents.sinks(h));
    if (!tangents.position_bias.is_null()) input.position_table = Tensor<C>(position_memory.sizes());
    for (Index n = 0; n < input.position_table.count(); ++n) {
      input.position_table.data()[n] = static_cast<C>(position_memory.data()[n]);
    }
    return input;
  }
};

/// What the library gave, between sentinels.
template <class T> struct SecondResult {
  Result<T> first;  // forward's
  Placed<T> tout, gdout;
  Tensor<T> tlse, gdlse, gbias, gsinks, gposition;
  Triple<T> gradients;  // gq, gk, gv

  explicit SecondResult(const SecondProblem<T>& problem)
      : first(problem.first),
        tout(first.out.view.sizes(), problem.first.c.layout),
        gdout(first.out.view.sizes(), problem.first.c.layout),
        tlse(first.lse.sizes()),
        gdlse(first.lse.sizes()),
        gradients(
            {problem.first.q().sizes(), problem.first.k().sizes(), problem.first.v().sizes()}, problem.first.c.layout) {
    if (!problem.first.bias.is_null()) {
      gbias = Tensor<T>(std::vector<Index>(problem.first.bias.sizes().begin(), problem.first.bias.sizes().end()));
    }
    if (problem.first.sinks.data() != nullptr) gsinks = Tensor<T>(problem.first.sinks.sizes());
    if (problem.first.position_table.data() != nullptr) gposition = Tensor<T>(problem.first.position_table.sizes());
    for (Tensor<T>* tensor : {&tlse, &gdlse, &gbias, &gsinks, &gposition}) {
      if (tensor->data() != nullptr) std::fill_n(tensor->data(), tensor->count(), kQuietNan<T>);
    }
  }

  bool sentinels_intact() const {
    return tout.storage.sentinels_intact() && gdout.storage.sentinels_intact() && gradients.sentinels_intact();
  }

  void run(const SecondProblem<T>& problem, Context& context) {
    const Problem<T>& p = problem.first;
    first.run_forward(p, context);
    attention_jvp(p.q(), p.k(), p.v(), first.lse, problem.tangents, tout.view, tlse, p.options, context);
    AttentionSecondGradients<T> wanted;
    wanted.gq = gradients.views[0], wanted.gk = gradients.views[1], wanted.gv = gradients.views[2];
    wanted.gdout = gdout.view;
    wanted.gdlse = gdlse;
    if (!p.bias.is_null()) wanted.gbias = gbias;
    if (p.sinks.data() != nullptr) wanted.gsinks = gsinks;
    if (p.position_table.data() != nullptr) wanted.gposition_bias = gposition;
    wanted.dlse = p.dlse;
    attention_double_backward(
        p.q(), p.k(), p.v(), first.out.view, first.lse, p.dout.view, problem.tangents, wanted, p.options, context);
  }
};

}  // namespace qkv::test
