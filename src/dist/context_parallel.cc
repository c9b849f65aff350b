// The methods: what is sent, and what each rank computes. Not: the messages (exchange.h), checks (call.h).
#include "qkv/dist/context_parallel.h"

#include "dist/call.h"
#include "dist/shared_gradients.h"

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

template <class T>
void forward_by_rows(const ParallelCall<T>& call, const View<T, 4>& out, const View<Accumulator<T>, 3>& lse) {
  GatherRows<T> k(call.transport, call.k, call.keys), v(call.transport, call.v, call.keys);
  const Tensor<T> all_k = k.wait(), all_v = v.wait();
  each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
    const AttentionOutputs<T> outputs{.out = rows_between(out, begin, end), .lse = rows_between(lse, begin, end)};
    attention_forward(rows_between(call.q, begin, end), all_k, all_v, outputs, call.options_at(rows), call.context);
  });
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

template <class T>
void backward_by_rows(const ParallelCall<T>& call, const ForwardResults<T>& results, const AttentionGradients<T>& gradients) {
  using Sum = Accumulator<T>;
  GatherRows<T> k(call.transport, call.k, call.keys), v(call.transport, call.v, call.keys);
  const Tensor<T> all_k = k.wait(), all_v = v.wait();
  const bool wants_k = !gradients.dk.is_null() || !gradients.dk_sums.is_null(),
             wants_v = !gradients.dv.is_null() || !gradients.dv_sums.is_null();
  Tensor<Sum> dk(wants_k ? all_k.sizes() : std::vector<Index>{0}), dv(wants_v ? all_v.sizes() : std::vector<Index>{0});
  RankShares<T> shares(gradients);
  each_piece(call.queries.of_rank[call.rank()], [&](const Rows& rows, Index begin, Index end) {
    Tensor<Sum> piece_dk(dk.sizes()), piece_dv(dv.sizes());
    AttentionGradients<T> wanted;
    wanted.dq = rows_between(gradients.dq, begin, end);
    if (wants_k) wanted.dk_sums = piece_dk;
    if (wants_v) wanted.dv_sums = piece_dv;
    wanted.dlse = rows_between(gradients.dlse, begin, end);
    wanted.accumulate = gradients.accumulate;
    shares.add(wanted, [&](const AttentionGradients<T>& of_piece) {
      attention_backward(rows_between(call.q, begin, end), all_k, all_v, rows_between(results.out, begin, end),
                         rows_between(results.lse, begin, end), rows_between(results.dout, begin, end), of_piece,
                         call.options_at(rows), call.context);
    });
    for (Index n = 0; n < dk.count(); ++n) dk.data()[n] += piece_dk.data()[n];
    for (Index n = 0; n < dv.count(); ++n) dv.data()[n] += piece_dv.data()[n];
  });
  const auto give_back = [&](const Tensor<Sum>& share, const View<T, 4>& gradient, const View<Sum, 4>& sums) {
    const Tensor<Sum> total = sum_to_owners(call.transport, share, call.keys);
    const Sum* numbers = total.data();
    if (sums.is_null()) {
      take(numbers, gradient, rounded<T>(gradients.accumulate));
    } else {
      take(numbers, sums, rounded<Sum>(gradients.accumulate));
    }
  };
  if (wants_k) give_back(dk, gradients.dk, gradients.dk_sums);
  if (wants_v) give_back(dv, gradients.dv, gradients.dv_sums);
  shares.finish(call.transport);
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
