// Checks of a call, and which method computes it.
#include "qkv/dist/context_parallel.h"

#include <algorithm>

#include "core/check.h"
#include "dist/call.h"

namespace qkv::inline v0::dist {
namespace {

void check_gradients(const ParallelCall& call, const Gradients& g) {
  const auto& [q, k, v, out, lse, dout] = call.x;
  const auto beside = [&](const char* name, const AnyView& x, const AnyView& tokens, Index width) {
    if (!x.is_null()) check_sizes(call.function, name, x, tokens.size(0), tokens.size(1), tokens.size(2), width);
  };
  check_sizes(call.function, "out", out, q.size(0), q.size(1), q.size(2), v.size(3));
  check_sizes(call.function, "dout", dout, q.size(0), q.size(1), q.size(2), v.size(3));
  call.check_row_numbers("lse", lse);
  check<UnsupportedError>(g.lse_low.is_null(), call.function, "lse_low is not read by several ranks: leave it out");
  if (!g.dlse.is_null()) call.check_row_numbers("dlse", g.dlse);
  beside("dq", g.dq, q, q.size(3));
  beside("dk", g.dk, k, k.size(3));
  beside("dk_sums", g.dk_sums, k, k.size(3));
  beside("dv", g.dv, k, v.size(3));
  beside("dv_sums", g.dv_sums, k, v.size(3));
  check<OptionError>((g.dk.is_null() || g.dk_sums.is_null()) && (g.dv.is_null() || g.dv_sums.is_null()), call.function,
      "dk and dk_sums, dv and dv_sums must not both be given: got both");
  const NamedBox outputs[] = {{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dk_sums", g.dk_sums}, {"dv_sums", g.dv_sums},
      {"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dposition_bias", g.dposition_bias}};
  const NamedBox inputs[] = {
      {"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}, {"dout", dout}, {"dlse", g.dlse}};
  check_outputs(call.function, outputs, inputs);
}

std::string given(const AnyView& x) { return x.is_null() ? "not given" : "given"; }

/// A rank without rows may have no memory for what is given all the same: an address tells it from null.
template <class... Views> void give_addresses(Views&... views) {
  static std::byte none;
  for (AnyView* x : {&views...}) {
    if (x->is_null() && std::ranges::any_of(x->sizes, [](Index size) { return size != 0; })) x->data = &none;
  }
}
Tensors with_addresses(Tensors x) {
  give_addresses(x.q, x.k, x.v, x.out, x.lse, x.dout);
  return x;
}

}  // namespace

ContextParallel::ContextParallel(Transport& transport, ContextParallelOptions options, Context& context)
    : transport_(transport), options_(options), context_(context) {
  constexpr const char* function = "dist::ContextParallel";
  check<OptionError>(options.block >= 1, function, "block must be at least 1: got ", options.block);
  check<OptionError>(options.turns >= 1, function, "turns must be at least 1: got ", options.turns);
  check<OptionError>(options.layout == Layout::kZigZag || options.turns == 1, function,
      "turns are of Layout::kZigZag: must be 1: got ", options.turns);
  check<OptionError>(options.chunk >= 0, function, "chunk must not be negative: got ", options.chunk);
  check<OptionError>(options.method != Method::kUlysses || options.chunk == 0, function,
      "Ulysses computes whole heads: chunk must be 0: got ", options.chunk);
}

void ContextParallel::run_forward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out,
    const AnyView& lse, const AttentionOptions& options) {
  ParallelCall call{
      "ContextParallel::forward", transport_, options_, context_, options, with_addresses({q, k, v, out, lse, {}})};
  call.agree({{"lse", given(call.x.lse)}}, [&] {
    check_sizes(call.function, "out", out, q.size(0), q.size(1), q.size(2), v.size(3));
    if (!lse.is_null()) call.check_row_numbers("lse", lse);
    const NamedBox outputs[] = {{"out", out}, {"lse", lse}}, inputs[] = {{"q", q}, {"k", k}, {"v", v}};
    check_outputs(call.function, outputs, inputs);
  });
  options_.method == Method::kUlysses ? forward_by_heads(call) : forward_by_keys(call);
}

void ContextParallel::run_backward(const AnyView& q, const AnyView& k, const AnyView& v, const AnyView& out,
    const AnyView& lse, const AnyView& dout, const Gradients& gradients, const AttentionOptions& options) {
  Gradients g = gradients;
  give_addresses(g.dq, g.dk, g.dv, g.dk_sums, g.dv_sums, g.dlse);
  ParallelCall call{
      "ContextParallel::backward", transport_, options_, context_, options, with_addresses({q, k, v, out, lse, dout})};
  call.agree({{"dq", given(g.dq)}, {"dk", given(g.dk)}, {"dv", given(g.dv)}, {"dk_sums", given(g.dk_sums)},
                 {"dv_sums", given(g.dv_sums)}, {"dbias", g.dbias.shape()}, {"dsinks", g.dsinks.shape()},
                 {"dposition_bias", g.dposition_bias.shape()}, {"dlse", given(g.dlse)}, {"lse_low", given(g.lse_low)},
                 {"accumulate", g.accumulate ? "yes" : "no"}},
      [&] { check_gradients(call, g); });
  options_.method == Method::kUlysses ? backward_by_heads(call, g) : backward_by_keys(call, g);
}

}  // namespace qkv::inline v0::dist
