// The methods: what is sent, and what each rank computes. Not: the messages (exchange.h), checks (call.h).
#include "qkv/dist/context_parallel.h"

#include <optional>

#include "dist/call.h"
#include "dist/shared_gradients.h"
#include "dist/under_way.h"

namespace qkv::inline v0::dist {
namespace {

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
  GatherRows<T> k, v;
  KeysUnderWay(const ParallelCall<T>& call, Index begin, Index end)
      : k(call.transport, call.k.sliced(1, begin, end), call.keys, call.needed),
        v(call.transport, call.v.sliced(1, begin, end), call.keys, call.needed) {}
  bool poll() { return static_cast<int>(k.poll()) + static_cast<int>(v.poll()) == 2; }
};

/// Key/value heads that are computed together: one, so that the next one travels meanwhile and two are held at most. All where
/// nothing travels, and where gradients of biases are wanted, whose size a step costs.
template <class T>
Index heads_of_step(const ParallelCall<T>& call, bool at_once) {
  return at_once || call.transport.size() == 1 ? call.k.size(1) : 1;
}

/// body(first key/value head, k, v) for each step, while those of the next one travel, and what `also` polls; then after(head),
/// which may use the transport.
template <class T, class Also, class Body, class After>
void each_step_of_heads(const ParallelCall<T>& call, Index step, const Also& also, const Body& body, const After& after) {
  const Index heads = call.k.size(1);
  std::optional<KeysUnderWay<T>> next(std::in_place, call, 0, step);
  for (Index g = 0; g < heads; g += step) {
    const Tensor<T> k = next->k.wait(), v = next->v.wait();
    next.reset();
    if (g + step < heads) next.emplace(call, g + step, g + 2 * step);
    if (call.transport.size() == 1) {
      body(g, k, v);
    } else {
      UnderWay others([&] { return static_cast<int>(!next || next->poll()) + static_cast<int>(also()) == 2; });
      body(g, k, v);
      others.finish();
    }
    after(g);
  }
}

/// Heads of q that read key/value heads [g, g + step).
template <class E, int kRank>
View<E, kRank> query_heads(const View<E, kRank>& x, Index g, Index step, Index group) {
  return x.is_null() ? x : x.sliced(1, g * group, (g + step) * group);
}

template <class T>
void forward_by_rows(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  const Index step = heads_of_step(call, false), group = call.q.size(1) / call.k.size(1);
  const auto nothing = [] { return true; };
  each_step_of_heads(
      call, step, nothing,
      [&](Index g, const Tensor<T>& k, const Tensor<T>& v) {
        each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
          const auto mine = [&](const auto& x) { return query_heads(rows_between(x, begin, end), g, step, group); };
          attention_forward(mine(call.q), k, v, {.out = mine(out), .lse = mine(lse)}, call.options_at(rows, g * group),
                            call.context);
        });
      },
      [](Index) {});
}

template <class T>
void forward_by_heads(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  using Sum = Accumulator<T>;
  RowsForHeads<T> q(call.transport, call.q, call.queries), k(call.transport, call.k, call.keys),
      v(call.transport, call.v, call.keys);
  const Tensor<T> my_q = q.wait(), my_k = k.wait(), my_v = v.wait();
  Tensor<T> my_out({my_q.size(0), my_q.size(1), my_q.size(2), my_v.size(3)});
  Tensor<Sum> my_lse({my_q.size(0), my_q.size(1), my_q.size(2)});
  attention_forward(my_q, my_k, my_v, {.out = my_out, .lse = my_lse}, call.options_of_heads(), call.context);
  const auto set = [](auto& to, const auto& number) { to = number; };
  heads_for_rows<T>(call.transport, my_out, out, call.queries, set);
  if (lse.is_null()) return;
  heads_for_rows<Sum>(call.transport, with_width(View<const Sum, 3>(my_lse)), with_width(lse), call.queries, set);
}

template <class T>
struct ForwardResults {
  View<const T, 4> out, dout;
  View<const Accumulator<T>, 3> lse;
};

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
  bool poll() { return static_cast<int>(!dk || dk->poll()) + static_cast<int>(!dv || dv->poll()) == 2; }
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
  const Index step = heads_of_step(call, shared.any()), group = call.q.size(1) / call.k.size(1);
  std::optional<SharesUnderWay<T>> shares;
  Tensor<Sum> dk, dv;  // this rank's shares of a step
  const auto poll_shares = [&] { return !shares || shares->poll(); };
  const auto compute = [&](Index g, const Tensor<T>& k, const Tensor<T>& v) {
    const auto zeros = [](bool wanted, const Tensor<T>& x) { return wanted ? Tensor<Sum>(x.sizes()) : Tensor<Sum>(); };
    dk = zeros(wants_k, k), dv = zeros(wants_v, v);
    bool first = true;
    each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
      Tensor<Sum> more_dk = first ? Tensor<Sum>() : zeros(wants_k, k), more_dv = first ? Tensor<Sum>() : zeros(wants_v, v);
      const auto mine = [&](const auto& x) { return query_heads(rows_between(x, begin, end), g, step, group); };
      AttentionGradients<T> wanted;
      wanted.dq = mine(gradients.dq);
      if (wants_k) wanted.dk_sums = first ? dk : more_dk;
      if (wants_v) wanted.dv_sums = first ? dv : more_dv;
      wanted.dlse = mine(gradients.dlse);
      wanted.accumulate = gradients.accumulate;
      shared.add(wanted, [&](const AttentionGradients<T>& of_piece) {
        attention_backward(mine(call.q), k, v, mine(results.out), mine(results.lse), mine(results.dout), of_piece,
                           call.options_at(rows, g * group), call.context);
      });
      for (Index n = 0; n < more_dk.count(); ++n) dk.data()[n] += more_dk.data()[n];
      for (Index n = 0; n < more_dv.count(); ++n) dv.data()[n] += more_dv.data()[n];
      first = false;
    });
  };
  each_step_of_heads(call, step, poll_shares, compute, [&](Index g) {
    if (shares) shares->finish(gradients);
    shares.emplace(call, dk, dv, g, step);
  });
  if (shares) shares->finish(gradients);
  shared.finish(call.transport);
}

template <class T>
void backward_by_heads(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& gradients) {
  using Sum = Accumulator<T>;
  Transport& transport = call.transport;
  RowsForHeads<T> q(transport, call.q, call.queries), k(transport, call.k, call.keys), v(transport, call.v, call.keys),
      out(transport, results.out, call.queries), dout(transport, results.dout, call.queries);
  RowsForHeads<Sum> lse(transport, with_width(results.lse), call.queries),
      dlse(transport, with_width(gradients.dlse), call.queries);
  const Tensor<T> my_q = q.wait(), my_k = k.wait(), my_v = v.wait(), my_out = out.wait(), my_dout = dout.wait();
  const Tensor<Sum> my_lse = lse.wait(), my_dlse = dlse.wait();
  const auto rows = [&](const Tensor<Sum>& x) {
    return View<const Sum, 3>(x.data(), {my_q.size(0), my_q.size(1), my_q.size(2)});
  };
  const auto like = [](bool wanted, const Tensor<T>& x) { return wanted ? x.sizes() : std::vector<Index>{0}; };
  const bool sums_k = !gradients.dk_sums.is_null(), sums_v = !gradients.dv_sums.is_null();
  Tensor<T> dq(like(!gradients.dq.is_null(), my_q)), dk(like(!gradients.dk.is_null(), my_k)),
      dv(like(!gradients.dv.is_null(), my_v));
  Tensor<Sum> dk_sums(like(sums_k, my_k)), dv_sums(like(sums_v, my_v));
  AttentionGradients<T> wanted;
  if (!gradients.dq.is_null()) wanted.dq = dq;
  if (!gradients.dk.is_null()) wanted.dk = dk;
  if (!gradients.dv.is_null()) wanted.dv = dv;
  if (sums_k) wanted.dk_sums = dk_sums;
  if (sums_v) wanted.dv_sums = dv_sums;
  if (!gradients.dlse.is_null()) wanted.dlse = rows(my_dlse);
  RankShares<T> shares(gradients);
  shares.add(wanted, [&](const AttentionGradients<T>& all) {
    attention_backward(my_q, my_k, my_v, my_out, rows(my_lse), my_dout, all, call.options_of_heads(), call.context);
  });
  const auto give_back = [&]<class E>(const View<E, 4>& mine, const View<E, 4>& gradient, const Sequence& sequence) {
    if (gradient.is_null()) return;
    heads_for_rows<E>(transport, mine, gradient, sequence, [&](E& to, const E& number) {
      to = gradients.accumulate ? static_cast<E>(static_cast<Sum>(to) + static_cast<Sum>(number)) : number;
    });
  };
  give_back(wanted.dq, gradients.dq, call.queries);
  give_back(wanted.dk, gradients.dk, call.keys);
  give_back(wanted.dv, gradients.dv, call.keys);
  give_back(wanted.dk_sums, gradients.dk_sums, call.keys);
  give_back(wanted.dv_sums, gradients.dv_sums, call.keys);
  shares.finish(transport);
}

template <class T>
void check_gradients(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& g) {
  const auto beside_k = [&](const char* name, const auto& x, Index width) {
    const std::array<Index, 4> wanted{call.k.size(0), call.k.size(1), call.k.size(2), width};
    check<ShapeError>(
        x.is_null() || x.sizes() == wanted, call.function, name, " must be ", [&] { return shape_text(wanted.data(), 4); },
        " or null: got ", x);
  };
  const Index d = call.q.size(3), dv = call.v.size(3);
  call.check_beside_q("out", results.out.sizes(), dv);
  call.check_beside_q("dout", results.dout.sizes(), dv);
  call.check_beside_q("lse", with_width(results.lse).sizes(), 1);
  if (!g.dlse.is_null()) call.check_beside_q("dlse", with_width(g.dlse).sizes(), 1);
  if (!g.dq.is_null()) call.check_beside_q("dq", g.dq.sizes(), d);
  beside_k("dk", g.dk, d);
  beside_k("dk_sums", g.dk_sums, d);
  beside_k("dv", g.dv, dv);
  beside_k("dv_sums", g.dv_sums, dv);
  check<OptionError>((g.dk.is_null() || g.dk_sums.is_null()) && (g.dv.is_null() || g.dv_sums.is_null()), call.function,
                     "dk and dk_sums, dv and dv_sums must not both be given: got both");
}

template <class T>
void forward(ParallelCall<T> call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  call.agree({{"lse", given(!lse.is_null())}}, [&] {
    call.check_beside_q("out", out.sizes(), call.v.size(3));
    if (!lse.is_null()) call.check_beside_q("lse", with_width(lse).sizes(), 1);
  });
  if (call.cut.method == Method::kUlysses) {
    forward_by_heads(call, out, lse);
  } else {
    forward_by_rows(call, out, lse);
  }
}

template <class T>
void backward(ParallelCall<T> call, const ForwardResults<T>& results, const AttentionGradients<T>& g) {
  call.agree({{"dq", given(!g.dq.is_null())},
              {"dk", given(!g.dk.is_null())},
              {"dv", given(!g.dv.is_null())},
              {"dk_sums", given(!g.dk_sums.is_null())},
              {"dv_sums", given(!g.dv_sums.is_null())},
              {"dbias", g.dbias.shape()},
              {"dsinks", g.dsinks.shape()},
              {"dposition_bias", g.dposition_bias.shape()},
              {"dlse", given(!g.dlse.is_null())},
              {"accumulate", g.accumulate ? "yes" : "no"}},
             [&] { check_gradients(call, results, g); });
  if (call.cut.method == Method::kUlysses) {
    backward_by_heads(call, results, g);
  } else {
    backward_by_rows(call, results, g);
  }
}

}  // namespace

ContextParallel::ContextParallel(Transport& transport, ContextParallelOptions options, Context& context)
    : transport_(transport), options_(options), context_(context) {
  check<OptionError>(options.block >= 1, "dist::ContextParallel", "block must be at least 1: got ", options.block);
}

#define QKV_DEFINE(T)                                                                                                   \
  void ContextParallel::forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out,             \
                                View<Accumulator<T>, 3> lse, const AttentionOptions& options) {                         \
    dist::forward<T>({"ContextParallel::forward", transport_, options_, context_, options, q, k, v, {}, {}}, out, lse); \
  }                                                                                                                     \
  void ContextParallel::backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out,      \
                                 View<const Accumulator<T>, 3> lse, View<const T, 4> dout,                              \
                                 const AttentionGradients<T>& gradients, const AttentionOptions& options) {             \
    dist::backward<T>({"ContextParallel::backward", transport_, options_, context_, options, q, k, v, {}, {}},          \
                      {out, dout, lse}, gradients);                                                                     \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
QKV_DEFINE(BFloat16)
QKV_DEFINE(Float16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::dist
