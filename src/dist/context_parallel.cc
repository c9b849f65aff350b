// Checks of a call, and which method computes it.
#include "qkv/dist/context_parallel.h"

#include "core/check.h"
#include "dist/call.h"

namespace qkv::inline v0::dist {
namespace {

void check_gradients(const ParallelCall& call, const Gradients& g) {
  const auto beside_k = [&](const char* name, const Array& x, Index width) {
    std::array<Index, 4> wanted = call.x.k.sizes;
    wanted[3] = width;
    check<ShapeError>(
        x.is_null() || x.sizes == wanted, call.function, name, " must be ",
        [&] { return shape_text(wanted.data(), 4); }, " or null: got ", [&] { return shape_text(x.sizes.data(), 4); });
  };
  const Index d = call.x.q.sizes[3], dv = call.x.v.sizes[3];
  call.check_beside_q("out", call.x.out, dv);
  call.check_beside_q("dout", call.x.dout, dv);
  call.check_beside_q("lse", call.x.lse, 1);
  call.check_beside_q("dlse", g.dlse, 1, true);
  call.check_beside_q("dq", g.dq, d, true);
  beside_k("dk", g.dk, d);
  beside_k("dk_sums", g.dk_sums, d);
  beside_k("dv", g.dv, dv);
  beside_k("dv_sums", g.dv_sums, dv);
  check<OptionError>((g.dk.is_null() || g.dk_sums.is_null()) && (g.dv.is_null() || g.dv_sums.is_null()), call.function,
      "dk and dk_sums, dv and dv_sums must not both be given: got both");
}

void forward(ParallelCall call) {
  const Array &out = call.x.out, &lse = call.x.lse;
  call.agree({{"lse", given(!lse.is_null())}}, [&] {
    call.check_beside_q("out", out, call.x.v.sizes[3]);
    call.check_beside_q("lse", lse, 1, true);
  });
  call.cut.method == Method::kUlysses ? forward_by_heads(call, out, lse) : forward_by_keys(call, out, lse);
}

void backward(ParallelCall call, const Gradients& g, const std::array<std::string, 3>& shared_shapes) {
  call.agree({{"dq", given(!g.dq.is_null())}, {"dk", given(!g.dk.is_null())}, {"dv", given(!g.dv.is_null())},
                 {"dk_sums", given(!g.dk_sums.is_null())}, {"dv_sums", given(!g.dv_sums.is_null())},
                 {"dbias", shared_shapes[0]}, {"dsinks", shared_shapes[1]}, {"dposition_bias", shared_shapes[2]},
                 {"dlse", given(!g.dlse.is_null())}, {"accumulate", g.accumulate ? "yes" : "no"}},
      [&] { check_gradients(call, g); });
  call.cut.method == Method::kUlysses ? backward_by_heads(call, g) : backward_by_keys(call, g);
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

#define QKV_DEFINE(T)                                                                                              \
  void ContextParallel::forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out,        \
      View<Accumulator<T>, 3> lse, const AttentionOptions& options) {                                              \
    dist::forward({"ContextParallel::forward", transport_, options_, context_, options,                            \
        {Array(q), Array(k), Array(v), Array(out), Array(lse), {}}});                                              \
  }                                                                                                                \
  void ContextParallel::backward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<const T, 4> out, \
      View<const Accumulator<T>, 3> lse, View<const T, 4> dout, const AttentionGradients<T>& g,                    \
      const AttentionOptions& options) {                                                                           \
    dist::backward({"ContextParallel::backward", transport_, options_, context_, options,                          \
                       {Array(q), Array(k), Array(v), Array(out), Array(lse), Array(dout)}},                       \
        Gradients(g), {g.dbias.shape(), g.dsinks.shape(), g.dposition_bias.shape()});                              \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
QKV_DEFINE(BFloat16)
QKV_DEFINE(Float16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::dist
