// Forward mode and second derivatives: attention_jvp, attention_double_backward. float and double only.
#include "qkv/derivatives.h"

#include "attention/options.h"
#include "bindings.h"

namespace qkv::python {

namespace {

void jvp(nb::handle q, nb::handle k, nb::handle v, nb::handle lse, nb::handle tq, nb::handle tk, nb::handle tv,
         nb::handle tbias, nb::handle tout, nb::handle tlse, const OptionsObject* options) {
  constexpr const char* kName = "attention_jvp";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), la(kName, "lse", lse), oa(kName, "tout", tout);
  const OptionalArray tla(kName, "tlse", tlse);
  const OptionalArray tqa(kName, "tq", tq), tka(kName, "tk", tk), tva(kName, "tv", tv), tba(kName, "tbias", tbias);
  const AttentionOptions o = options_or_default(options);
  with_wide_type(kName, qa, [&]<class T>() {
    const Computation call;
    attention_jvp(qa, ka, va, la, AttentionTangents<T>{tqa, tka, tva, tba}, oa, tla, o, *call.context);
  });
}

void double_backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle ddq,
                     nb::handle ddk, nb::handle ddv, nb::handle ddbias, nb::handle dlse, nb::handle gq, nb::handle gk,
                     nb::handle gv, nb::handle gdout, nb::handle gbias, nb::handle gdlse, const OptionsObject* options) {
  constexpr const char* kName = "attention_double_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      da(kName, "dout", dout);
  const OptionalArray ddqa(kName, "tq", ddq), ddka(kName, "tk", ddk), ddva(kName, "tv", ddv), ddba(kName, "tbias", ddbias),
      dla(kName, "dlse", dlse);
  const OptionalArray gqa(kName, "gq", gq), gka(kName, "gk", gk), gva(kName, "gv", gv), gda(kName, "gdout", gdout),
      gba(kName, "gbias", gbias), gla(kName, "gdlse", gdlse);
  const AttentionOptions o = options_or_default(options);
  with_wide_type(kName, qa, [&]<class T>() {
    const Computation call;
    const AttentionSecondGradients<T> made{
        .gq = gqa, .gk = gka, .gv = gva, .gdout = gda, .gbias = gba, .gdlse = gla, .dlse = dla};
    attention_double_backward(qa, ka, va, oa, la, da, AttentionTangents<T>{ddqa, ddka, ddva, ddba}, made, o, *call.context);
  });
}

}  // namespace

void bind_derivatives(nb::module_& m) {
  m.def("jvp", &jvp, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("lse"), nb::arg("tq").none(), nb::arg("tk").none(),
        nb::arg("tv").none(), nb::arg("tbias").none(), nb::arg("tout"), nb::arg("tlse").none(), nb::arg("options").none());
  m.def("double_backward", &double_backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
        nb::arg("dout"), nb::arg("ddq").none(), nb::arg("ddk").none(), nb::arg("ddv").none(), nb::arg("ddbias").none(),
        nb::arg("dlse").none(), nb::arg("gq").none(), nb::arg("gk").none(), nb::arg("gv").none(), nb::arg("gdout").none(),
        nb::arg("gbias").none(), nb::arg("gdlse").none(), nb::arg("options").none());
}

}  // namespace qkv::python
