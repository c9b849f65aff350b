// The forms: dense tensors, caches, lists, parts; each runs one case of the list.
#include <utility>

#include "qkv/varlen.h"
#include "support/cases/caches.h"
#include "support/cases/listed_case.h"
#include "support/forms/form.h"

namespace qkv::test {

template <class T> void dense_forward(const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
  attention_forward(p.q(), p.k(), p.v(), outputs, p.options, context);
}
template <class T>
void dense_backward(const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& gradients, Context& context) {
  attention_backward(p.q(), p.k(), p.v(), r.out.view, r.lse, p.dout.view, gradients, p.options, context);
}

namespace {

template <class T> AttentionPlan dense_plan(const Problem<T>& p, Context& context) {
  return attention_plan(p.q(), p.k(), p.v(), p.options, context);
}

AttentionOptions invariant(AttentionOptions options) {
  options.bits = Bits::kInvariant;
  return options;
}

template <class T> Form<T> invariant() {
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    attention_forward(p.q(), p.k(), p.v(), outputs, invariant(p.options), context);
  };
  const auto plan = [](const Problem<T>& p, Context& context) {
    return attention_plan(p.q(), p.k(), p.v(), invariant(p.options), context);
  };
  return {"invariant", kForward | kWeights, 0, any, forward, nullptr, plan};
}

/// A cache of the problem's keys and values. NaN lies behind each sequence and in the pages that none holds.
template <class T> KVCache filled(CacheKind kind, const Problem<T>& p) {
  const Index room = p.c.kv_len + 30;
  KVCache cache = empty_cache(kind == CacheKind::kNone ? CacheKind::kContiguous : kind, kStorageOf<T>, p.c.batch,
      p.c.num_kv_heads, p.c.head_dim, p.c.v_head_dim, room);
  if (kind == CacheKind::kNone) return cache;
  Tensor<T> k({p.c.batch, p.c.num_kv_heads, room, p.c.head_dim}),
      v({p.c.batch, p.c.num_kv_heads, room, p.c.v_head_dim});
  for (Tensor<T>* x : {&k, &v}) std::ranges::fill(x->span(), kQuietNan<T>);
  cache.append(k, v);
  for (const Index sequence : cache.sequences()) cache.truncate(sequence, 0);
  fill_cache(cache, p.k(), p.v(), std::vector<Index>(static_cast<std::size_t>(p.c.batch), p.c.kv_len), p.c.seed);
  return cache;
}

/// Keys and values in a cache of the queries' type; kNone: memory of the caller.
template <class T, CacheKind kKind> Form<T> cached(const char* name) {
  const auto of = [](AttentionCase c) -> std::optional<AttentionCase> {
    c.cache = CacheKind::kNone;
    c.dropout = 0;
    if (c.empty_row == EmptyRow::kMean) c.empty_row = EmptyRow::kNaN;
    // Few queries are decoded on a cache however few the keys.
    return c.q_len * c.num_heads <= 16 * c.num_kv_heads && c.kv_len < 64 ? std::nullopt : std::optional(c);
  };
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    const KVCache cache = filled(kKind, p);
    attention_forward(p.q(), kKind == CacheKind::kNone ? KeyValue::contiguous(p.k(), p.v()) : cache.key_value(),
        outputs, p.options, context);
  };
  const auto plan = [](const Problem<T>& p, Context& context) {
    const KVCache cache = filled(kKind, p);
    return attention_plan(
        p.q(), kKind == CacheKind::kNone ? KeyValue::contiguous(p.k(), p.v()) : cache.key_value(), p.options, context);
  };
  return {name, kForward | kWeights, kForward | kWeights, of, forward, nullptr, plan};
}

/// [B, H, T, D] that lies token by token, as [B * T, H, D].
template <class E> View<E, 3> tokens_of(const View<E, 4>& x) {
  if (x.is_null()) return {};
  return {x.data(), {x.size(0) * x.size(2), x.size(1), x.size(3)}, {x.stride(2), x.stride(1), 1}};
}

/// A ragged batch whose sequences happen to be equally long.
template <class T> struct AsSequences {
  using Sum = Accumulator<T>;
  std::vector<Index> q_offsets{0}, kv_offsets{0};

  explicit AsSequences(const AttentionCase& c) {
    for (Index b = 0; b < c.batch; ++b) {
      q_offsets.push_back(q_offsets.back() + c.q_len);
      kv_offsets.push_back(kv_offsets.back() + c.kv_len);
    }
  }
  RaggedOffsets offsets() const { return {q_offsets, kv_offsets}; }

  /// [B, H, Tq] as [B * Tq, H], and back into `to`.
  static Tensor<Sum> by_token(const View<const Sum, 3>& rows) {
    Tensor<Sum> made({rows.size(0) * rows.size(2), rows.size(1)});
    each(rows.sizes(), [&](Index b, Index h, Index t, Index n) { made.data()[n] = rows(b, h, t); });
    return made;
  }
  static void back(const Tensor<Sum>& tokens, const View<Sum, 3>& to) {
    each(to.sizes(), [&](Index b, Index h, Index t, Index n) { to(b, h, t) = tokens.data()[n]; });
  }

 private:
  template <class Body> static void each(const typename View<Sum, 3>::Sizes& sizes, const Body& body) {
    for (Index b = 0, n = 0; b < sizes[0]; ++b) {
      for (Index t = 0; t < sizes[2]; ++t) {
        for (Index h = 0; h < sizes[1]; ++h) body(b, h, t, n++);
      }
    }
  }
};

template <class T> Form<T> ragged() {
  using Sum = Accumulator<T>;
  const auto of = [](AttentionCase c) {
    c.layout = Layout::kBthd;
    return any(c);
  };
  const auto forward = [](const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context) {
    const AsSequences<T> batch(p.c);
    Tensor<Sum> lse({p.c.batch * p.c.q_len, p.c.num_heads});
    RaggedOutputs<T> wanted{.out = tokens_of(outputs.out), .kind = outputs.kind};
    if (!outputs.lse.is_null()) wanted.lse = lse;
    if (!outputs.weights.is_null()) wanted.weights = View<Sum, 1>(outputs.weights.data(), {outputs.weights.count()});
    attention_varlen_forward(
        tokens_of(p.q()), tokens_of(p.k()), tokens_of(p.v()), wanted, batch.offsets(), p.options, context);
    if (!outputs.lse.is_null()) batch.back(lse, outputs.lse);
  };
  const auto backward = [](const Problem<T>& p, const Result<T>& r, const AttentionGradients<T>& g, Context& context) {
    const AsSequences<T> batch(p.c);
    const Tensor<Sum> lse = batch.by_token(r.lse), dlse = batch.by_token(g.dlse);
    const RaggedGradients<T> wanted{.dq = tokens_of(g.dq),
        .dk = tokens_of(g.dk),
        .dv = tokens_of(g.dv),
        .dbias = g.dbias,
        .dsinks = g.dsinks,
        .dposition_bias = g.dposition_bias,
        .dlse = dlse,
        .accumulate = g.accumulate};
    attention_varlen_backward(tokens_of(p.q()), tokens_of(p.k()), tokens_of(p.v()), tokens_of(r.out.view), lse,
        tokens_of(p.dout.view), wanted, batch.offsets(), p.options, context);
  };
  const auto plan = [](const Problem<T>& p, Context& context) {
    const AsSequences<T> batch(p.c);
    return attention_varlen_plan(
        tokens_of(p.q()), tokens_of(p.k()), tokens_of(p.v()), batch.offsets(), p.options, context);
  };
  // dsinks: the same terms, but each sequence's sum is rounded.
  return {"ragged", kEverything, kEverything & ~kDsinks, of, forward, backward, plan};
}

template <class T> Form<T> with_lists(Form<T> form, const char* name) {
  form.name = name;
  form.own = [] {
    std::vector<AttentionCase> all = list_cases();
    for (const AttentionCase& each : long_list_cases()) all.push_back(each);
    for (std::size_t n = 0, count = all.size(); n < count; ++n) {
      all[n].sinks = n % 4 == 2 ? SinkKind::kUniform : SinkKind::kNone;
      all[n].softcap = n % 3 == 1 ? 5 : 0;
      all[n].empty_row = n % 4 == 3 ? EmptyRow::kNaN : EmptyRow::kZero;
      all[n].layout = n % 2 == 1 ? Layout::kBthd : Layout::kBhtd;
      if (all[n].q_len == 1 || n % 3 != 0) continue;
      all.push_back(all[n]);
      constexpr std::array kFilters = {MaskKind::kCausalBottomRight, MaskKind::kKeepHqk, MaskKind::kStreaming};
      all.back().mask = kFilters[n / 3 % 3];
      all.back().fill = n % 2 == 0 ? Fill::kHugeLogits : Fill::kNanBehindMask;
    }
    return all;
  };
  return form;
}

template <class T> std::vector<Form<T>> make_forms() {
  const Form<T> dense{"dense", kEverything, 0, any, dense_forward<T>, dense_backward<T>, dense_plan<T>};
  const Form<T> rows = in_rows<T>(), heads = in_heads<T>();
  Form<T> on_cache = cached<T, CacheKind::kPages16>(""), in_batch = ragged<T>();
  on_cache.bits = in_batch.bits = 0;  // which are read by lists where tensors are not, or never
  return {dense, invariant<T>(), captured<T>(), derivatives<T>(), cached<T, CacheKind::kNone>("key_value"),
      cached<T, CacheKind::kContiguous>("contiguous"), cached<T, CacheKind::kPages1>("pages1"),
      cached<T, CacheKind::kPages16>("pages16"), cached<T, CacheKind::kPages100>("pages100"), ragged<T>(), rows, heads,
      in_chunks<T>(), with_lists(dense, "lists"), with_lists(invariant<T>(), "invariant_lists"),
      with_lists(on_cache, "cached_lists"), with_lists(in_batch, "ragged_lists"), with_lists(rows, "rows_of_lists"),
      with_lists(heads, "heads_of_lists"), with_lists(in_chunks<T>(), "chunks_of_lists")};
}

}  // namespace

template <class T> const std::vector<Form<T>>& forms() {
  static const std::vector<Form<T>> all = make_forms<T>();
  return all;
}

template <class T> void run_form(const Form<T>& form, const Problem<T>& problem, Result<T>& result, unsigned asked,
    Context& context, bool accumulate) {
  asked &= form.gives;
  const bool gradients = (asked & kGradients) != 0;
  if ((asked & kForward) != 0 || gradients) {
    AttentionOutputs<T> outputs{.out = result.out.view};
    if ((asked & kLse) != 0 || gradients) outputs.lse = result.lse;
    form.forward(problem, outputs, context);
  }
  if ((asked & kWeights) != 0) form.forward(problem, {.weights = result.weights}, context);
  if (!gradients) return;
  AttentionGradients<T> wanted;
  if ((asked & kDq) != 0) wanted.dq = result.gradients.views[0];
  if ((asked & kDk) != 0) wanted.dk = result.gradients.views[1];
  if ((asked & kDv) != 0) wanted.dv = result.gradients.views[2];
  if ((asked & kDbias) != 0 && !problem.bias.is_null()) wanted.dbias = result.dbias;
  if ((asked & kDsinks) != 0 && result.dsinks.data() != nullptr) wanted.dsinks = result.dsinks;
  if ((asked & kDposition) != 0 && result.dposition.data() != nullptr) wanted.dposition_bias = result.dposition;
  wanted.dlse = problem.dlse;
  wanted.accumulate = accumulate;
  form.backward(problem, result, wanted, context);
}

template <class T> std::vector<Tensor<double>> outputs_of(const Result<T>& result, unsigned asked) {
  std::vector<Tensor<double>> all;
  const auto add = [&](auto copy) { all.push_back((asked >> all.size() & 1U) != 0 ? copy() : Tensor<double>()); };
  add([&] { return copy_as<double>(result.out.view); });
  for (const auto* tensor : {&result.lse, &result.weights}) add([=] { return widened(*tensor); });
  for (const View<T, 4>& view : result.gradients.views) add([&] { return copy_as<double>(view); });
  for (const auto* tensor : {&result.dbias, &result.dsinks, &result.dposition}) add([=] { return widened(*tensor); });
  return all;
}

#define QKV_TEST_FORMS(T)                                                                             \
  template const std::vector<Form<T>>& forms();                                                       \
  template void run_form<T>(const Form<T>&, const Problem<T>&, Result<T>&, unsigned, Context&, bool); \
  template std::vector<Tensor<double>> outputs_of<T>(const Result<T>&, unsigned);
QKV_TEST_TYPES(QKV_TEST_FORMS)

}  // namespace qkv::test
