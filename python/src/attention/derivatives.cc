// Forward mode and second derivatives: attention_jvp, attention_double_backward. float and double only.
#include "qkv/derivatives.h"

#include "attention/options.h"
#include "bindings.h"

namespace qkv::python {

namespace {

using Optional = std::optional<Array>;

struct TangentArrays {
  TangentArrays(const char* function, nb::handle tq, nb::handle tk, nb::handle tv, nb::handle tbias)
      : q(optional_array(function, "tq", tq)),
        k(optional_array(function, "tk", tk)),
        v(optional_array(function, "tv", tv)),
        bias(optional_array(function, "tbias", tbias)) {}

  template <class T>
  AttentionTangents<T> views() const {
    AttentionTangents<T> tangents;
    tangents.q = input_or_null<T, 4>(q);
    tangents.k = input_or_null<T, 4>(k);
    tangents.v = input_or_null<T, 4>(v);
    tangents.bias = input_or_null<T, 4>(bias);
    return tangents;
  }

  Optional q, k, v, bias;
};

void jvp(nb::handle q, nb::handle k, nb::handle v, nb::handle lse, nb::handle tq, nb::handle tk, nb::handle tv,
         nb::handle tbias, nb::handle tout, nb::handle tlse, const OptionsObject* options) {
  constexpr const char* kName = "attention_jvp";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), la(kName, "lse", lse), oa(kName, "tout", tout);
  const Optional tla = optional_array(kName, "tlse", tlse);
  const TangentArrays tangents(kName, tq, tk, tv, tbias);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  with_wide_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>();
    const auto lv = la.input<T, 3>();
    const auto tangent_views = tangents.views<T>();
    const auto ov = oa.output<T, 4>();
    const auto tlv = output_or_null<T, 3>(tla);
    const nb::gil_scoped_release released;
    attention_jvp(qv, kv, vv, lv, tangent_views, ov, tlv, o, *with);
  });
}

void double_backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle ddq,
                     nb::handle ddk, nb::handle ddv, nb::handle ddbias, nb::handle gq, nb::handle gk, nb::handle gv,
                     nb::handle gdout, nb::handle gbias, const OptionsObject* options) {
  constexpr const char* kName = "attention_double_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      da(kName, "dout", dout);
  const TangentArrays cotangents(kName, ddq, ddk, ddv, ddbias);
  const Optional gqa = optional_array(kName, "gq", gq), gka = optional_array(kName, "gk", gk),
                 gva = optional_array(kName, "gv", gv), gda = optional_array(kName, "gdout", gdout),
                 gba = optional_array(kName, "gbias", gbias);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  with_wide_type(kName, qa, [&]<class T>() {
    AttentionSecondGradients<T> gradients;
    gradients.gq = output_or_null<T, 4>(gqa);
    gradients.gk = output_or_null<T, 4>(gka);
    gradients.gv = output_or_null<T, 4>(gva);
    gradients.gdout = output_or_null<T, 4>(gda);
    gradients.gbias = output_or_null<T, 4>(gba);
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>(), ov = oa.input<T, 4>(),
               dv = da.input<T, 4>();
    const auto lv = la.input<T, 3>();
    const auto cotangent_views = cotangents.views<T>();
    const nb::gil_scoped_release released;
    attention_double_backward(qv, kv, vv, ov, lv, dv, cotangent_views, gradients, o, *with);
  });
}

}  // namespace

void bind_derivatives(nb::module_& m) {
  m.def("jvp", &jvp, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("lse"), nb::arg("tq").none(), nb::arg("tk").none(),
        nb::arg("tv").none(), nb::arg("tbias").none(), nb::arg("tout"), nb::arg("tlse").none(), nb::arg("options").none());
  m.def("double_backward", &double_backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
        nb::arg("dout"), nb::arg("ddq").none(), nb::arg("ddk").none(), nb::arg("ddv").none(), nb::arg("ddbias").none(),
        nb::arg("gq").none(), nb::arg("gk").none(), nb::arg("gv").none(), nb::arg("gdout").none(), nb::arg("gbias").none(),
        nb::arg("options").none());
}

}  // namespace qkv::python
