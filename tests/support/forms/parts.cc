// Forms that compute the problem in parts: rows and heads (AttentionOptions::part), keys that arrive in chunks.
#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"
#include "support/forms/form.h"

namespace qkv::test {

namespace {

template <class V> V sliced(const V& view, int axis, Index begin, Index end) {
  return view.is_null() ? view : view.sliced(axis, begin, end);
}

/// to = sum, or += where it is accumulated.
template <class E, class Sum> void round_to(const View<E, 4>& to, const Tensor<Sum>& sums, bool accumulate) {
  const View<const Sum, 4> from = sums;
  for_each_index(to.sizes(), [&](Index b, Index h, Index j, Index d) {
    const Sum sum = from(b, h, j, d);
    to(b, h, j, d) = number_as<E>(accumulate ? number_as<Sum>(to(b, h, j, d)) + sum : sum);
  });
}

/// A part of the problem: rows [begin, end) and heads [head, head + heads), with the key/value heads that they read.
struct Part {
  Index begin, end, head, heads;

  template <class V> V of_queries(const V& view) const {
    return sliced(sliced(view, 2, begin, end), 1, head, head + heads);
  }
  template <class V> V of_keys(const V& view, Index group) const {
    return sliced(view, 1, head / group, (head + heads) / group);
  }
};

/// Rows are cut where no strip ends, and where strips of any instruction set do.
std::vector<Part> row_parts(const AttentionCase& c) {
  std::vector<Part> parts;
  Index begin = 0;
  for (const Index end : {c.q_len / 5, c.q_len / 2 / 32 * 32, c.q_len}) {
    if (end <= begin) continue;
    parts.push_back({begin, end, 0, c.num_heads});
    begin = end;
  }
  return parts;
}
std::vector<Part> head_parts(const AttentionCase& c) {
  std::vector<Part> parts;
  const Index group = c.num_heads / c.num_kv_heads;
  for (Index g = 0; g < c.num_kv_heads; ++g) parts.push_back({0, c.q_len, g * group, group});
  return parts;
}

template <class T> AttentionOptions part_of(const Problem<T>& p, const Part& part) {
  AttentionOptions options = p.options;
  options.part = {part.begin, p.c.q_len, part.head, p.c.num_heads};
  return options;
}

/// The problem in parts, one after the other; shares of gradients are summed.
template <class T, std::vector<Part> (*kCut)(const AttentionCase&)> Form<T> in_parts(const char* name, unsigned bits) {
  using Sum = Accumulator<T>;
  const auto of = [](AttentionCase c) {
    return c.q_len == 0 || c.batch == 0 || c.num_heads == 0 ? std::nullopt : any(c);
  };
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    const Index group = p.c.num_heads / p.c.num_kv_heads;
    for (const Part& part : kCut(p.c)) {
      attention_forward(part.of_queries(p.q()), part.of_keys(p.k(), group), part.of_keys(p.v(), group),
          {.out = part.of_queries(outputs.out),
              .lse = part.of_queries(outputs.lse),
              .weights = part.of_queries(outputs.weights),
              .kind = outputs.kind},
          part_of(p, part), context);
    }
  };
  const auto backward = [](const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& g, Context& context) {
    const Index group = p.c.num_heads / p.c.num_kv_heads;
    Tensor<Sum> dk({p.c.batch, p.c.num_kv_heads, p.c.kv_len, p.c.head_dim});
    Tensor<Sum> dv({p.c.batch, p.c.num_kv_heads, p.c.kv_len, p.c.v_head_dim});
    const View<Sum, 4> all_dk = dk, all_dv = dv;
    bool first = true;
    for (const Part& part : kCut(p.c)) {
      AttentionGradients<T> wanted;
      wanted.dlse = part.of_queries(g.dlse);
      const auto call = [&](bool accumulate) {
        wanted.accumulate = accumulate;
        attention_backward(part.of_queries(p.q()), part.of_keys(p.k(), group), part.of_keys(p.v(), group),
            part.of_queries(r.out.view), part.of_queries(View<const Sum, 3>(r.lse)), part.of_queries(p.dout.view),
            wanted, part_of(p, part), context);
      };
      if (!g.dk.is_null()) wanted.dk_sums = part.of_keys(all_dk, group);
      if (!g.dv.is_null()) wanted.dv_sums = part.of_keys(all_dv, group);
      if (!wanted.dk_sums.is_null() || !wanted.dv_sums.is_null()) call(true);
      wanted.dk_sums = wanted.dv_sums = {};
      wanted.dq = part.of_queries(g.dq);
      if (!wanted.dq.is_null()) call(g.accumulate);
      wanted.dq = {};
      wanted.dbias = g.dbias, wanted.dsinks = g.dsinks, wanted.dposition_bias = g.dposition_bias;
      if (!g.dbias.is_null() || !g.dsinks.is_null() || !g.dposition_bias.is_null()) call(g.accumulate || !first);
      first = false;
    }
    if (!g.dk.is_null()) round_to(g.dk, dk, g.accumulate);
    if (!g.dv.is_null()) round_to(g.dv, dv, g.accumulate);
  };
  return {name, kEverything, bits, of, forward, backward};
}

}  // namespace

/// Keys that arrive in chunks, each as tensors of its own. Calls that read lists alone, decode or take a mean are not
/// carried.
template <class T> Form<T> in_chunks() {
  using Sum = Accumulator<T>;
  static const auto each_chunk = [](const Problem<T>& p, Context& context, const auto& body) {
    const Index length = p.c.kv_len,
                step = carried_step(stored_as<T>(), p.c.head_dim, p.c.v_head_dim, p.options, context);
    for (Index begin = 0, end; begin == 0 || begin < length; begin = end) {
      end = std::min(begin + step, length);
      const Tensor<T> k = copy_as<T>(p.k().sliced(2, begin, end)), v = copy_as<T>(p.v().sliced(2, begin, end));
      body(KeyChunk{View<const T, 4>(k), View<const T, 4>(v), begin});
      if (end == length) return;
    }
  };
  static const auto keys_of = [](const AttentionCase& c) { return KeySizes{c.num_kv_heads, c.kv_len, c.v_head_dim}; };
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    const View<const T, 4> q = p.q();
    if (!carries_forward(q, keys_of(p.c), p.c.q_len, p.options, context)) return dense_forward(p, outputs, context);
    CarriedForward carried(q, keys_of(p.c), outputs.out, outputs.lse, p.options, context);
    do {
      each_chunk(p, context, [&](const KeyChunk& chunk) { carried.add(chunk); });
    } while (carried.finish());
  };
  const auto backward = [](const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& g, Context& context) {
    const View<const T, 4> q = p.q();
    if (!carries_backward(q, keys_of(p.c), p.c.q_len, p.options, context)) return dense_backward(p, r, g, context);
    detail::AnyGradients own;
    own.dq = g.dq, own.dlse = g.dlse, own.accumulate = g.accumulate;
    const View<const Sum, 3> lse = r.lse;
    CarriedBackward carried(q, keys_of(p.c), {r.out.view, lse, p.dout.view}, own, p.options, context);
    if (lse_is_coarse(lse)) {
      each_chunk(p, context, [&](const KeyChunk& chunk) { carried.add_maxima(chunk); });
      carried.end_maxima();
    }
    each_chunk(p, context, [&](const KeyChunk& chunk) {
      Tensor<Sum> dk({p.c.batch, p.c.num_kv_heads, chunk.k.size(2), p.c.head_dim});
      Tensor<Sum> dv({p.c.batch, p.c.num_kv_heads, chunk.k.size(2), p.c.v_head_dim});
      carried.add(chunk, View<Sum, 4>(dk), View<Sum, 4>(dv), {});
      if (!g.dk.is_null()) round_to(g.dk.sliced(2, chunk.begin, chunk.end()), dk, g.accumulate);
      if (!g.dv.is_null()) round_to(g.dv.sliced(2, chunk.begin, chunk.end()), dv, g.accumulate);
    });
  };
  const auto of = [](AttentionCase c) { return c.batch == 0 || c.num_heads == 0 ? std::nullopt : any(c); };
  return {"chunks", kForward | kDq | kDk | kDv, kForward | kDq | kDk | kDv, of, forward, backward};
}

template <class T> Form<T> in_rows() { return in_parts<T, row_parts>("rows", kForward | kWeights | kDq); }
template <class T> Form<T> in_heads() {
  return in_parts<T, head_parts>("heads", kForward | kWeights | kDq | kDk | kDv);
}

#define QKV_TEST_PARTS(T)         \
  template Form<T> in_rows<T>();  \
  template Form<T> in_heads<T>(); \
  template Form<T> in_chunks<T>();
QKV_TEST_TYPES(QKV_TEST_PARTS)

}  // namespace qkv::test
