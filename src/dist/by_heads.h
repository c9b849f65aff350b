// Ulysses: rows are exchanged for heads, and a rank computes its own heads. Jacobs 2023 (arXiv:2309.14509). Not: the messages
// (exchange.h), checks (call.h).
#pragma once

#include <optional>

#include "dist/call.h"
#include "dist/pipeline.h"
#include "dist/shared_gradients.h"

namespace qkv::inline v0::dist {

/// What Ulysses' forward exchanges in one step: rows of q, k and v for heads, and heads of out and lse for rows.
template <class T>
struct HeadsUnderWay {
  struct Tensors {
    Tensor<T> q, k, v;
  };
  RowsForHeads<T> q, k, v;

  HeadsUnderWay(const ParallelCall<T>& call, const HeadPart& of)
      : q(call.transport, call.q, call.queries, of),
        k(call.transport, call.k, call.keys, of),
        v(call.transport, call.v, call.keys, of) {}
  bool poll() { return poll_all(q, k, v); }
  Tensors wait() { return {q.wait(), k.wait(), v.wait()}; }
};
template <class T>
struct OutUnderWay {
  using Sum = Accumulator<T>;
  HeadsForRows<T> out;
  HeadsForRows<Sum> lse;

  OutUnderWay(const ParallelCall<T>& call, const View<const T, 4>& its_out, const View<const Sum, 3>& its_lse,
              const HeadPart& of)
      : out(call.transport, its_out, call.queries, of), lse(call.transport, with_width(its_lse), call.queries, of) {}
  bool poll() { return poll_all(out, lse); }
  void finish(const View<T, 4>& to, const View<Sum, 3>& lse_to) {
    const auto set = [](auto& number, const auto& came) { number = came; };
    out.wait(to, set);
    lse.wait(with_width(lse_to), set);
  }
};

/// Steps of Ulysses: the key/value heads of a rank, one at a time; all at once where that is asked for.
template <class T>
Index steps_of_heads(const ParallelCall<T>& call, bool at_once) {
  return at_once || call.transport.size() == 1 ? 1 : call.k.size(1) / call.transport.size();
}

template <class T>
void forward_by_heads(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  using Sum = Accumulator<T>;
  const Index steps = steps_of_heads(call, false);
  Tensor<T> my_out;
  Tensor<Sum> my_lse;
  std::optional<OutUnderWay<T>> results;
  const auto inputs_of = [&](Index step) { return std::make_unique<HeadsUnderWay<T>>(call, HeadPart{step, steps}); };
  const auto work = [&](Index step, const auto& heads) {
    my_out = Tensor<T>({heads.q.size(0), heads.q.size(1), heads.q.size(2), heads.v.size(3)});
    my_lse = Tensor<Sum>({heads.q.size(0), heads.q.size(1), heads.q.size(2)});
    attention_forward(heads.q, heads.k, heads.v, {.out = my_out, .lse = my_lse}, call.options_of_heads({step, steps}),
                      call.context);
  };
  const auto after = [&](Index step) {
    if (results) results->finish(out, lse);
    results.emplace(call, my_out, lse.is_null() ? View<const Sum, 3>() : View<const Sum, 3>(my_lse), HeadPart{step, steps});
  };
  pipeline(
      call.transport, steps, inputs_of, work, [&] { return !results || results->poll(); }, after);
  results->finish(out, lse);
}

/// What Ulysses' backward exchanges in one step.
template <class T>
struct BackwardHeadsUnderWay {
  using Sum = Accumulator<T>;
  struct Tensors {
    Tensor<T> q, k, v, out, dout;
    Tensor<Sum> lse, dlse;
  };
  RowsForHeads<T> q, k, v, out, dout;
  RowsForHeads<Sum> lse, dlse;

  BackwardHeadsUnderWay(const ParallelCall<T>& call, const ForwardResults<T>& results, const View<const Sum, 3>& its_dlse,
                        const HeadPart& of)
      : q(call.transport, call.q, call.queries, of),
        k(call.transport, call.k, call.keys, of),
        v(call.transport, call.v, call.keys, of),
        out(call.transport, results.out, call.queries, of),
        dout(call.transport, results.dout, call.queries, of),
        lse(call.transport, with_width(results.lse), call.queries, of),
        dlse(call.transport, with_width(its_dlse), call.queries, of) {}
  bool poll() { return poll_all(q, k, v, out, dout, lse, dlse); }
  Tensors wait() { return {q.wait(), k.wait(), v.wait(), out.wait(), dout.wait(), lse.wait(), dlse.wait()}; }
};

/// Gradients of this rank's heads of one step, and their way back to the rows.
template <class T>
struct GradientsOfHeads {
  using Sum = Accumulator<T>;
  Tensor<T> dq, dk, dv;
  Tensor<Sum> dk_sums, dv_sums;
  AttentionGradients<T> wanted;  // refers to the tensors
  std::optional<HeadsForRows<T>> dq_back, dk_back, dv_back;
  std::optional<HeadsForRows<Sum>> dk_sums_back, dv_sums_back;

  template <class Tensors>
  GradientsOfHeads(const AttentionGradients<T>& g, const Tensors& heads) {
    const auto want = [](const auto& asked, const Tensor<T>& like, auto& tensor, auto& view) {
      if (asked.is_null()) return;
      tensor = std::remove_reference_t<decltype(tensor)>(like.sizes());
      view = tensor;
    };
    want(g.dq, heads.q, dq, wanted.dq);
    want(g.dk, heads.k, dk, wanted.dk);
    want(g.dv, heads.v, dv, wanted.dv);
    want(g.dk_sums, heads.k, dk_sums, wanted.dk_sums);
    want(g.dv_sums, heads.v, dv_sums, wanted.dv_sums);
  }
  void send(const ParallelCall<T>& call, const HeadPart& of) {
    const auto start = [&](auto& back, const auto& view, const Sequence& sequence) {
      if (!view.is_null()) back.emplace(call.transport, view, sequence, of);
    };
    start(dq_back, wanted.dq, call.queries);
    start(dk_back, wanted.dk, call.keys);
    start(dv_back, wanted.dv, call.keys);
    start(dk_sums_back, wanted.dk_sums, call.keys);
    start(dv_sums_back, wanted.dv_sums, call.keys);
  }
  bool poll() {
    bool done = true;
    const auto move_on = [&](auto& back) { done = (!back || back->poll()) && done; };
    move_on(dq_back), move_on(dk_back), move_on(dv_back), move_on(dk_sums_back), move_on(dv_sums_back);
    return done;
  }
  void finish(const AttentionGradients<T>& g) {
    const auto write = [&]<class E>(auto& back, const View<E, 4>& gradient) {
      if (!back) return;
      back->wait(gradient, [&](E& to, const E& number) {
        to = g.accumulate ? static_cast<E>(static_cast<Sum>(to) + static_cast<Sum>(number)) : number;
      });
    };
    write(dq_back, g.dq), write(dk_back, g.dk), write(dv_back, g.dv), write(dk_sums_back, g.dk_sums),
        write(dv_sums_back, g.dv_sums);
  }
};

template <class T>
void backward_by_heads(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& gradients) {
  using Sum = Accumulator<T>;
  RankShares<T> shared(gradients);
  const Index steps = steps_of_heads(call, shared.any());
  std::unique_ptr<GradientsOfHeads<T>> now, last;
  const auto inputs_of = [&](Index step) {
    return std::make_unique<BackwardHeadsUnderWay<T>>(call, results, gradients.dlse, HeadPart{step, steps});
  };
  const auto work = [&](Index step, const auto& heads) {
    const auto rows = [&](const Tensor<Sum>& x) {
      return View<const Sum, 3>(x.data(), {heads.q.size(0), heads.q.size(1), heads.q.size(2)});
    };
    now = std::make_unique<GradientsOfHeads<T>>(gradients, heads);
    if (!gradients.dlse.is_null()) now->wanted.dlse = rows(heads.dlse);
    shared.add(now->wanted, [&](const AttentionGradients<T>& all) {
      attention_backward(heads.q, heads.k, heads.v, heads.out, rows(heads.lse), heads.dout, all,
                         call.options_of_heads({step, steps}), call.context);
    });
  };
  const auto after = [&](Index step) {
    if (last) last->finish(gradients);
    last = std::move(now);
    last->send(call, {step, steps});
  };
  pipeline(
      call.transport, steps, inputs_of, work, [&] { return last == nullptr || last->poll(); }, after);
  last->finish(gradients);
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist
