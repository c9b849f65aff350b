// A case of second order: the case's problem, tangents of its inputs, what the reference makes of both, and what the
// library gave.
#pragma once

#include "qkv/derivatives.h"
#include "reference/second_order.h"
#include "support/problem.h"
#include "support/random.h"

namespace qkv::test {

/// The reference's inputs, in the type C of its arithmetic.
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
  const Problem<T>& first;
  Triple<T> moved;  // tangents of q, k, v, in the case's layout
  Tensor<T> bias_memory, sinks_memory, position_memory;
  AttentionTangents<T> tangents;

  /// Random tangents; hidden: as wild as what they are the tangents of.
  explicit SecondProblem(const Problem<T>& problem)
      : SecondProblem(problem, [random = Random(problem.c.seed + 4711)](T of) mutable {
          const T x = static_cast<T>(random.symmetric());
          return std::isfinite(of) ? x : of;
        }) {}

  /// Tangents rate(x) of each number x; borrows the problem.
  template <class Rate> SecondProblem(const Problem<T>& problem, Rate rate)
      : first(problem), moved({first.q().sizes(), first.k().sizes(), first.v().sizes()}, problem.c.layout) {
    const auto fill = [](const View<T, 4>& view, const View<const T, 4>& of, auto&& number) {
      for_each_index(
          view.sizes(), [&](Index b, Index h, Index t, Index n) { view(b, h, t, n) = number(of(b, h, t, n)); });
    };
    const auto shared = [&rate](T x) {  // bias, sinks, table: NaN beside what is -inf
      const T made = rate(x);
      return std::isfinite(made) ? made : kQuietNan<T>;
    };
    const auto numbers = [&shared](const Tensor<T>& of) {
      Tensor<T> made(of.sizes());
      std::ranges::transform(of.span(), made.data(), shared);
      return made;
    };
    fill(moved.views[0], first.q(), rate);
    fill(moved.views[1], first.k(), rate);
    fill(moved.views[2], first.v(), rate);
    const std::uint64_t seed = problem.c.seed,
                        style = seed % 5;  // some cases leave tangents out; at least one is given
    if (!first.bias.is_null()) {
      bias_memory = Tensor<T>(std::vector<Index>(first.bias.sizes().begin(), first.bias.sizes().end()));
      fill(bias_memory, first.bias, shared);
      if (style < 4) tangents.bias = bias_memory;
    }
    if (first.sinks.data() != nullptr) {
      sinks_memory = numbers(first.sinks);
      if (seed % 4 != 1) tangents.sinks = sinks_memory;
    }
    if (first.position_table.data() != nullptr) {
      position_memory = numbers(first.position_table);
      if (seed % 4 != 2) tangents.position_bias = position_memory;
    }
    if (style != 2) tangents.q = moved.views[0];
    if (style != 1) tangents.k = moved.views[1];
    if (style == 0 || style > 2) tangents.v = moved.views[2];
  }

  template <class C> SecondInput<C> reference_input() const {
    const auto copy = [](const View<const T, 4>& view) { return view.is_null() ? Tensor<C>() : copy_as<C>(view); };
    SecondInput<C> input{first.template reference_input<C>(), copy(tangents.q), copy(tangents.k), copy(tangents.v),
        copy(tangents.bias), {}};
    if (!tangents.sinks.is_null()) input.sinks = converted<C>(sinks_memory);
    if (!tangents.position_bias.is_null()) input.position_table = converted<C>(position_memory);
    return input;
  }
};

inline constexpr std::array kSecondNames = {
    "tout", "tlse", "gdout", "gdlse", "gq", "gk", "gv", "gposition", "gsinks", "gbias"};

/// The library's results, between sentinels.
template <class T> struct SecondResult {
  Result<T> first;  // forward's
  Stored<T> tout, gdout;
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

  /// `asked`: bits of kSecondNames.
  void run(const SecondProblem<T>& problem, Context& context, unsigned asked = ~0U) {
    const Problem<T>& p = problem.first;
    const auto of = [asked](unsigned n, const auto& view) {
      return (asked >> n & 1U) != 0 ? view : std::remove_cvref_t<decltype(view)>();
    };
    first.run_forward(p, context);
    if ((asked & 3) != 0) {
      attention_jvp(p.q(), p.k(), p.v(), first.lse, problem.tangents, of(0, tout.view), of(1, View<T, 3>(tlse)),
          p.options, context);
    }
    if (asked >> 2 == 0) return;
    AttentionSecondGradients<T> wanted;
    wanted.gdout = of(2, gdout.view), wanted.gdlse = of(3, View<T, 3>(gdlse));
    wanted.gq = of(4, gradients.views[0]), wanted.gk = of(5, gradients.views[1]), wanted.gv = of(6, gradients.views[2]);
    if (p.position_table.data() != nullptr) wanted.gposition_bias = of(7, View<T, 2>(gposition));
    if (p.sinks.data() != nullptr) wanted.gsinks = of(8, View<T, 1>(gsinks));
    if (!p.bias.is_null()) wanted.gbias = of(9, View<T, 4>(gbias));
    wanted.dlse = p.dlse;
    attention_double_backward(
        p.q(), p.k(), p.v(), first.out.view, first.lse, p.dout.view, problem.tangents, wanted, p.options, context);
  }

  /// In the order of the names; those that the problem has not are empty.
  std::vector<Tensor<T>> outputs() const {
    std::vector<Tensor<T>> all;
    all.push_back(copy_as<T>(tout.view));
    all.push_back(converted<T>(tlse));
    all.push_back(copy_as<T>(gdout.view));
    all.push_back(converted<T>(gdlse));
    for (const View<T, 4>& view : gradients.views) all.push_back(copy_as<T>(view));
    for (const Tensor<T>* x : {&gposition, &gsinks, &gbias}) all.push_back(converted<T>(*x));
    return all;
  }
};

}  // namespace qkv::test
