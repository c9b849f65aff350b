#include "support/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "support/cases/listed_case.h"
#include "support/checks/bounds.h"
#include "support/philox.h"
#include "support/random.h"

namespace qkv::test {

namespace {

template <class E, class F> void for_each(const View<E, 4>& view, F&& visit) {
  for_each_index(view.sizes(), [&](Index b, Index h, Index t, Index n) { visit(view(b, h, t, n), b, h, t); });
}

/// The function's value for each pair (b, h, i, j), computed once: the oracle asks for it several times. None stays
/// none.
template <class V> std::function<V(Index, Index, Index, Index)> remembered(
    const std::function<V(Index, Index, Index, Index)>& of, const AttentionCase& c) {
  if (!of) return {};
  struct Table {
    Index num_heads, q_len, kv_len;
    std::vector<V> values;
  };
  const auto table = std::make_shared<Table>(Table{c.num_heads, c.q_len, c.kv_len, {}});
  table->values.reserve(static_cast<std::size_t>(c.batch * c.num_heads * c.q_len * c.kv_len));
  for_each_index({c.batch, c.num_heads, c.q_len, c.kv_len},
      [&](Index b, Index h, Index i, Index j) { table->values.push_back(of(b, h, i, j)); });
  return [table](Index b, Index h, Index i, Index j) -> V {
    return table->values[static_cast<std::size_t>(((b * table->num_heads + h) * table->q_len + i) * table->kv_len + j)];
  };
}

}  // namespace

template <class T> Problem<T>::Problem(const AttentionCase& attention_case)
    : c(attention_case),
      mask(c.list_width > 0 ? listed_mask(c) : make_mask(c.mask, c.batch, c.num_heads, c.q_len, c.kv_len, c.seed)),
      qkv(sizes(), c.layout),
      dout({c.batch, c.num_heads, c.q_len, c.v_head_dim}, c.layout),
      dlse({c.batch, c.num_heads, c.q_len}) {
  Random random(c.seed + 77);
  options.mask = mask.mask;
  options.softcap = c.softcap;
  options.empty_row = c.empty_row;
  options.dropout = {
      .p = c.dropout, .seed = c.seed * 0x123456789ABCDEFu, .training = c.dropout > 0, .first_sequence = 0};
  if (c.scale == ScaleKind::kZero) options.scale = 0.0;
  if (c.scale == ScaleKind::kNegative) options.scale = -0.37;
  if (c.scale == ScaleKind::kExplicit) options.scale = 0.21;
  fill(q(), random, 1.5 * (c.fill == Fill::kHugeLogits ? huge_factor() : 1.0));
  fill(k(), random, 1.5);
  fill(v(), random, 1.0);
  fill(dout.view, random, 1.0);
  for (Sum& x : dlse.span()) x = static_cast<Sum>(random.symmetric());
  if (c.bias != BiasKind::kNone) make_bias(random);
  make_modifiers();
  if (c.fill == Fill::kOneHot) make_one_hot();
  if (c.fill == Fill::kConstantV) for_each(v(), [](T& x, Index, Index, Index) { x = number_as<T>(1.0); });
  if (c.fill == Fill::kNanBehindMask) poison(random);
}

template <class T> Problem<T>::~Problem() = default;

template <class T> bool Problem<T>::kept(Index b, Index h, Index i, Index j) const {
  return mask.keep(b, h, i, j) && !mod_hides(c.mod, h, i, j) &&
         (bias.is_null() || bias_at(b, h, i, j) != -std::numeric_limits<Sum>::infinity());
}

template <class T> template <class C> ReferenceInput<C> Problem<T>::reference_input() const {
  ReferenceInput<C> input{copy_as<C>(q()), copy_as<C>(k()), copy_as<C>(v()), copy_as<C>(dout.view), {}, {}, {}};
  input.dlse = copy_as<C>(View<const Sum, 3>(dlse));
  if (!bias.is_null()) {
    input.bias = copy_as<C>(bias);
    input.options.bias = input.bias;
  }
  if (sinks.data() != nullptr) {
    input.sinks = converted<C>(sinks);
    input.options.sinks = input.sinks;
  }
  if (position_table.data() != nullptr) {
    input.position_table = converted<C>(position_table);
    input.options.position_table = input.position_table;
    const Index offset = options.position_bias.align() == Align::kBottomRight ? c.kv_len - c.q_len : 0;
    input.options.position_row = [kind = c.position, offset](
                                     Index i, Index j) { return position_row(kind, j - i - offset); };
    input.options.position_factor = [kind = c.position, offset](
                                        Index i, Index j) { return position_factor(kind, j - i - offset); };
  }
  if (c.mod != ModKind::kNone) {
    input.mod = c.mod;
    input.options.score_mod = [kind = c.mod](
                                  C s, Index b, Index h, Index i, Index j) { return mod_value(kind, s, b, h, i, j); };
    input.options.score_mod_slope = [kind = c.mod](
                                        C s, Index, Index h, Index i, Index j) { return mod_slope(kind, s, h, i, j); };
  }
  input.options.keep = remembered(mask.keep, c);
  input.options.scale = options.scale;
  input.options.softcap = options.softcap;
  input.options.empty_row = options.empty_row;
  input.options.factor = remembered(factor_of(options.dropout, c.num_heads), c);
  return input;
}

template <class T> std::array<typename View<T, 4>::Sizes, 3> Problem<T>::sizes() const {
  return {{{c.batch, c.num_heads, c.q_len, c.head_dim}, {c.batch, c.num_kv_heads, c.kv_len, c.head_dim},
      {c.batch, c.num_kv_heads, c.kv_len, c.v_head_dim}}};
}

template <class T> void Problem<T>::fill(const View<T, 4>& view, Random& random, double amplitude) {
  for_each(view, [&](T& x, Index, Index, Index) { x = number_as<T>(amplitude * random.symmetric()); });
}

template <class T> double Problem<T>::huge_factor() const {
  const double scale = std::abs(options.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim))));
  const double factor = scale == 0 ? 1e4 : 1e4 / (scale * 0.75 * std::sqrt(static_cast<double>(c.head_dim)));
  return std::min(factor, kLargestNumber<T> / 2);  // finite in T
}

template <class T> void Problem<T>::make_one_hot() {
  if (c.kv_len == 0) return;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  const double factor = 60 / ((scale == 0 ? 1 : scale) * 0.75 * static_cast<double>(c.head_dim));
  for_each(q(), [&](T& x, Index b, Index h, Index i) {
    const Index n = &x - &q()(b, h, i, 0);
    x = number_as<T>(
        static_cast<Sum>(factor) * number_as<Sum>(k()(b, h / (c.num_heads / c.num_kv_heads), i % c.kv_len, n)));
  });
}

template <class T> Accumulator<T> Problem<T>::bias_at(Index b, Index h, Index i, Index j) const {
  return bias(bias.size(0) > 1 ? b : 0, bias.size(1) > 1 ? h : 0, bias.size(2) > 1 ? i : 0, bias.size(3) > 1 ? j : 0);
}

template <class T> void Problem<T>::make_modifiers() {
  Random random(c.seed + 4711);
  if (c.sinks != SinkKind::kNone) {
    sinks = Tensor<Sum>({c.num_heads});
    for (Index h = 0; h < c.num_heads; ++h) {
      const double drawn = 2 * random.symmetric() + (c.sinks == SinkKind::kStrong ? 20 : 0);
      const bool none = c.sinks == SinkKind::kSome && h % 2 == 0;
      sinks.data()[h] = none ? -std::numeric_limits<Sum>::infinity() : static_cast<Sum>(drawn);
    }
    options.sinks = sinks;
  }
  if (c.position != PositionKind::kNone) {
    position_table = Tensor<Sum>({position_rows(c.position), c.num_heads});
    const double amplitude = c.position == PositionKind::kAlibi ? 0.1 : 2;
    for (Sum& x : position_table.span()) x = static_cast<Sum>(amplitude * random.symmetric());
    options.position_bias = make_position(c.position, position_table, position_align(c.q_len, c.kv_len, c.seed));
  }
  options.score_mod = make_mod(c.mod);
}

template <class T> void Problem<T>::make_bias(Random& random) {
  const Index b = c.batch, h = c.num_heads, tq = c.q_len, tk = c.kv_len;
  using Sizes = typename View<Sum, 4>::Sizes;
  const std::array<Sizes, 9> all = {{{}, {b, h, tq, tk}, {b, 1, 1, tk}, {1, h, tq, tk}, {b, h, tq, 1}, {1, 1, tq, tk},
      {b, h, tq, tk}, {b, 1, 1, tk}, {1, h, tk, tq}}};
  const Sizes& memory = all[static_cast<std::size_t>(c.bias)];
  bias_memory = Tensor<Sum>({memory[0], memory[1], memory[2], memory[3]});
  bias = bias_memory;
  const Sum minus_infinity = -std::numeric_limits<Sum>::infinity();
  Index style = 0;
  for_each(bias, [&](Sum& x, Index, Index, Index) {
    if ((&x - bias.data()) % std::max<Index>(memory[3], 1) == 0) style = random.below(10);
    x = static_cast<Sum>(2 * random.symmetric());
    if (c.bias == BiasKind::kWithInfinity && (style == 0 || random.below(4) == 0)) x = minus_infinity;
    if (c.bias == BiasKind::kKeysInfinity) x = random.below(4) == 0 ? minus_infinity : Sum(0);
  });
  if (c.bias == BiasKind::kTransposed) bias = bias.transposed(2, 3);
  options.bias = bias;
}

template <class T> void Problem<T>::poison(Random& random) {
  const Index group_size = c.num_heads / c.num_kv_heads;
  const std::array<double, 3> poisons = {std::nan(""), HUGE_VAL, -HUGE_VAL};
  for_each_index({c.batch, c.num_kv_heads, c.kv_len}, [&](Index b, Index g, Index j) {
    bool read = false;
    for (Index h = g * group_size; h < (g + 1) * group_size; ++h) {
      for (Index i = 0; i < c.q_len && !read; ++i) read = kept(b, h, i, j);
    }
    if (read) return;
    const T value = number_as<T>(poisons[static_cast<std::size_t>(random.below(3))]);
    for (Index n = 0; n < c.head_dim; ++n) k()(b, g, j, n) = value;
    for (Index n = 0; n < c.v_head_dim; ++n) v()(b, g, j, n) = value;
  });
}

template <class T> Result<T>::Result(const Problem<T>& problem)
    : out({problem.c.batch, problem.c.num_heads, problem.c.q_len, problem.c.v_head_dim}, problem.c.layout),
      lse({problem.c.batch, problem.c.num_heads, problem.c.q_len}),
      weights({problem.c.batch, problem.c.num_heads, problem.c.q_len, problem.c.kv_len}),
      gradients({problem.q().sizes(), problem.k().sizes(), problem.v().sizes()}, problem.c.layout) {
  if (!problem.bias.is_null()) {
    dbias = Tensor<Sum>(std::vector<Index>(problem.bias.sizes().begin(), problem.bias.sizes().end()));
  }
  if (problem.sinks.data() != nullptr) dsinks = Tensor<Sum>(problem.sinks.sizes());
  if (problem.position_table.data() != nullptr) dposition = Tensor<Sum>(problem.position_table.sizes());
  for (Tensor<Sum>* tensor : {&lse, &weights, &dbias, &dsinks, &dposition}) {
    if (tensor->data() != nullptr) std::fill_n(tensor->data(), tensor->count(), kQuietNan<Sum>);
  }
}

template <class T> Result<T>::~Result() = default;

template <class T> bool Result<T>::sentinels_intact() const {
  return out.storage.sentinels_intact() && gradients.sentinels_intact();
}

template <class T> void Result<T>::run_forward(const Problem<T>& problem, Context& context) {
  if (problem.c.cache == CacheKind::kNone) {
    attention_forward(problem.q(), problem.k(), problem.v(), {.out = out.view, .lse = lse}, problem.options, context);
  } else {
    const KVCache cache = cache_of(problem.c.cache, kStorageOf<T>, problem.k(), problem.v(), problem.c.seed);
    attention_forward(problem.q(), cache.key_value(), {.out = out.view, .lse = lse}, problem.options, context);
  }
}

template <class T> void Result<T>::run_weights(const Problem<T>& problem, Context& context) {
  attention_forward(problem.q(), problem.k(), {}, {.weights = weights}, problem.options, context);
}

template <class T> void Result<T>::run_backward(const Problem<T>& problem, Context& context, bool accumulate) {
  AttentionGradients<T> wanted;
  wanted.dq = gradients.views[0], wanted.dk = gradients.views[1], wanted.dv = gradients.views[2];
  if (!problem.bias.is_null()) wanted.dbias = dbias;
  if (dsinks.data() != nullptr) wanted.dsinks = dsinks;
  if (dposition.data() != nullptr) wanted.dposition_bias = dposition;
  wanted.dlse = problem.dlse;
  wanted.accumulate = accumulate;
  attention_backward(
      problem.q(), problem.k(), problem.v(), out.view, lse, problem.dout.view, wanted, problem.options, context);
}

template <class T> void Result<T>::run(const Problem<T>& problem, Context& context) {
  run_forward(problem, context);
  run_weights(problem, context);
  run_backward(problem, context);
}

#define QKV_TEST_PROBLEM(T)                                                                    \
  template struct Problem<T>;                                                                  \
  template struct Result<T>;                                                                   \
  template ReferenceInput<Accumulator<T>> Problem<T>::reference_input<Accumulator<T>>() const; \
  template ReferenceInput<Wider<T>> Problem<T>::reference_input<Wider<T>>() const;
QKV_TEST_TYPES(QKV_TEST_PROBLEM)

}  // namespace qkv::test
