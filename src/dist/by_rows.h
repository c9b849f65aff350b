// All-gather: a rank computes its own queries, and gets the keys that they may attend. Not: the messages (exchange.h), checks
// (call.h).
#pragma once

#include <optional>

#include "dist/call.h"
#include "dist/pipeline.h"
#include "dist/shared_gradients.h"

namespace qkv::inline v0::dist {

/// What this rank computes of a sequence that is cut by rows: body(rows of the whole, [begin, end) of its own). Once without rows
/// where it holds none, so that every rank checks its options.
template <class Body>
void each_piece(const std::vector<Rows>& pieces, const Body& body) {
  Index begin = 0;
  for (const Rows& rows : pieces) {
    body(rows, begin, begin + rows.count());
    begin += rows.count();
  }
  if (pieces.empty()) body(Rows{0, 0}, 0, 0);
}

template <class E, int kRank>
View<E, kRank> rows_between(const View<E, kRank>& x, Index begin, Index end) {
  return x.is_null() ? x : x.sliced(2, begin, end);
}

/// Sums become the gradient, rounded once.
template <class T>
auto rounded(bool accumulate) {
  return [accumulate](T& to, Accumulator<T> sum) {
    to = static_cast<T>(accumulate ? static_cast<Accumulator<T>>(to) + sum : sum);
  };
}

/// Keys and values of heads [begin, end) of k, on their way to this rank.
template <class T>
struct KeysUnderWay {
  struct Tensors {
    Tensor<T> k, v;
  };
  GatherRows<T> k, v;

  KeysUnderWay(const ParallelCall<T>& call, Index begin, Index end)
      : k(call.transport, call.k.sliced(1, begin, end), call.keys, call.needed),
        v(call.transport, call.v.sliced(1, begin, end), call.keys, call.needed) {}
  bool poll() { return poll_all(k, v); }
  Tensors wait() { return {k.wait(), v.wait()}; }
};

template <class T>
auto keys_of_step(const ParallelCall<T>& call, Index heads) {
  return [&call, heads](Index step) { return std::make_unique<KeysUnderWay<T>>(call, step * heads, (step + 1) * heads); };
}

/// Heads of q that read key/value heads [g, g + step).
template <class E, int kRank>
View<E, kRank> query_heads(const View<E, kRank>& x, Index g, Index step, Index group) {
  return x.is_null() ? x : x.sliced(1, g * group, (g + step) * group);
}

template <class T>
void forward_by_rows(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  const Index kv_heads = call.k.size(1), group = call.q.size(1) / kv_heads, heads = call.transport.size() == 1 ? kv_heads : 1;
  const auto work = [&](Index step, const auto& keys) {
    each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
      const auto mine = [&](const auto& x) { return query_heads(rows_between(x, begin, end), step * heads, heads, group); };
      attention_forward(mine(call.q), keys.k, keys.v, {.out = mine(out), .lse = mine(lse)},
                        call.options_at(rows, step * heads * group), call.context);
    });
  };
  pipeline(
      call.transport, kv_heads / heads, keys_of_step(call, heads), work, [] { return true; }, [](Index) {});
}

/// Shares of dk and dv of some heads, on their way to the ranks that hold the rows.
template <class T>
struct SharesUnderWay {
  using Sum = Accumulator<T>;
  std::optional<SumToOwners<Sum>> dk, dv;
  Index first_head, heads;

  SharesUnderWay(const ParallelCall<T>& call, const Tensor<Sum>& k_share, const Tensor<Sum>& v_share, Index g, Index step)
      : first_head(g), heads(step) {
    if (k_share.rank() == 4) dk.emplace(call.transport, k_share, call.keys, call.needed);
    if (v_share.rank() == 4) dv.emplace(call.transport, v_share, call.keys, call.needed);
  }
  bool poll() {
    const bool dk_done = !dk || dk->poll(), dv_done = !dv || dv->poll();
    return dk_done && dv_done;
  }
  void finish(const AttentionGradients<T>& gradients) {
    const auto write = [&](std::optional<SumToOwners<Sum>>& shares, const View<T, 4>& gradient, const View<Sum, 4>& sums) {
      if (!shares) return;
      const Tensor<Sum> total = shares->wait();
      const Sum* numbers = total.data();
      if (sums.is_null()) {
        take(numbers, gradient.sliced(1, first_head, first_head + heads), rounded<T>(gradients.accumulate));
      } else {
        take(numbers, sums.sliced(1, first_head, first_head + heads), rounded<Sum>(gradients.accumulate));
      }
    };
    write(dk, gradients.dk, gradients.dk_sums);
    write(dv, gradients.dv, gradients.dv_sums);
  }
};

template <class T>
void backward_by_rows(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& gradients) {
  using Sum = Accumulator<T>;
  const bool wants_k = !gradients.dk.is_null() || !gradients.dk_sums.is_null(),
             wants_v = !gradients.dv.is_null() || !gradients.dv_sums.is_null();
  RankShares<T> shared(gradients);
  const Index kv_heads = call.k.size(1), group = call.q.size(1) / kv_heads;
  const Index heads = shared.any() || call.transport.size() == 1 ? kv_heads : 1;
  std::optional<SharesUnderWay<T>> shares;
  Tensor<Sum> dk, dv;  // this rank's shares of a step
  const auto zeros = [](bool wanted, const Tensor<T>& x) { return wanted ? Tensor<Sum>(x.sizes()) : Tensor<Sum>(); };
  const auto work = [&](Index step, const auto& keys) {
    dk = zeros(wants_k, keys.k), dv = zeros(wants_v, keys.v);
    bool first = true;
    each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
      Tensor<Sum> more_dk = zeros(wants_k && !first, keys.k), more_dv = zeros(wants_v && !first, keys.v);
      const auto mine = [&](const auto& x) { return query_heads(rows_between(x, begin, end), step * heads, heads, group); };
      AttentionGradients<T> wanted;
      wanted.dq = mine(gradients.dq);
      if (wants_k) wanted.dk_sums = first ? dk : more_dk;
      if (wants_v) wanted.dv_sums = first ? dv : more_dv;
      wanted.dlse = mine(gradients.dlse);
      wanted.accumulate = gradients.accumulate;
      shared.add(wanted, [&](const AttentionGradients<T>& of_piece) {
        attention_backward(mine(call.q), keys.k, keys.v, mine(results.out), mine(results.lse), mine(results.dout), of_piece,
                           call.options_at(rows, step * heads * group), call.context);
      });
      for (Index n = 0; n < more_dk.count(); ++n) dk.data()[n] += more_dk.data()[n];
      for (Index n = 0; n < more_dv.count(); ++n) dv.data()[n] += more_dv.data()[n];
      first = false;
    });
  };
  const auto after = [&](Index step) {
    if (shares) shares->finish(gradients);
    shares.emplace(call, dk, dv, step * heads, heads);
  };
  pipeline(
      call.transport, kv_heads / heads, keys_of_step(call, heads), work, [&] { return !shares || shares->poll(); }, after);
  shares->finish(gradients);
  shared.finish(call.transport);
}

}  // namespace qkv::inline v0::dist
