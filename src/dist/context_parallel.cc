// Checks of a call, and which method computes it. Not: the methods (by_rows.h, by_chunks.h, by_heads.h).
#include "qkv/dist/context_parallel.h"

#include "dist/by_chunks.h"
#include "dist/by_heads.h"

namespace qkv::inline v0::dist {
namespace {

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
  } else if (forward_goes_by_chunks(call)) {
    forward_by_chunks(call, out, lse);
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
  } else if (backward_goes_by_chunks(call)) {
    backward_by_chunks(call, results, g);
  } else {
    backward_by_rows(call, results, g);
  }
}

}  // namespace

ContextParallel::ContextParallel(Transport& transport, ContextParallelOptions options, Context& context)
    : transport_(transport), options_(options), context_(context) {
  check<OptionError>(options.block >= 1, "dist::ContextParallel", "block must be at least 1: got ", options.block);
  check<OptionError>(options.turns >= 1, "dist::ContextParallel", "turns must be at least 1: got ", options.turns);
  check<OptionError>(options.chunk >= 0, "dist::ContextParallel", "chunk must not be negative: got ", options.chunk);
  check<OptionError>(options.method != Method::kUlysses || options.chunk == 0, "dist::ContextParallel",
                     "Ulysses computes whole heads: chunk must be 0: got ", options.chunk);
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
