// Ragged batches: attention_varlen_forward and _backward.
#include "qkv/varlen.h"

#include <nanobind/stl/vector.h>

#include "attention/options.h"
#include "bindings.h"

namespace qkv::python {

namespace {

using Optional = std::optional<Array>;
using Numbers = std::vector<Index>;

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, const Numbers& q_offsets,
             const Numbers& kv_offsets, const OptionsObject* options) {
  constexpr const char* kName = "attention_varlen";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const Optional la = optional_array(kName, "lse", lse);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 3>(), kv = ka.input<T, 3>(), vv = va.input<T, 3>();
    const auto ov = oa.output<T, 3>();
    const auto lv = output_or_null<Accumulator<T>, 2>(la);
    const nb::gil_scoped_release released;
    attention_varlen_forward(qv, kv, vv, {.out = ov, .lse = lv}, {q_offsets, kv_offsets}, o, *with);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dbias, nb::handle dsinks, nb::handle dposition_bias, nb::handle dlse,
              const Numbers& q_offsets, const Numbers& kv_offsets, const OptionsObject* options) {
  constexpr const char* kName = "attention_varlen_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      ga(kName, "dout", dout);
  const Optional dqa = optional_array(kName, "dq", dq), dka = optional_array(kName, "dk", dk),
                 dva = optional_array(kName, "dv", dv), dba = optional_array(kName, "dbias", dbias),
                 dsa = optional_array(kName, "dsinks", dsinks), dpa = optional_array(kName, "dposition_bias", dposition_bias),
                 dla = optional_array(kName, "dlse", dlse);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    using Sum = Accumulator<T>;
    RaggedGradients<T> gradients;
    gradients.dq = output_or_null<T, 3>(dqa);
    gradients.dk = output_or_null<T, 3>(dka);
    gradients.dv = output_or_null<T, 3>(dva);
    gradients.dbias = output_or_null<Sum, 4>(dba);
    gradients.dsinks = output_or_null<Sum, 1>(dsa);
    gradients.dposition_bias = output_or_null<Sum, 2>(dpa);
    gradients.dlse = input_or_null<Sum, 2>(dla);
    const auto qv = qa.input<T, 3>(), kv = ka.input<T, 3>(), vv = va.input<T, 3>(), ov = oa.input<T, 3>(),
               gv = ga.input<T, 3>();
    const auto lv = la.input<Sum, 2>();
    const nb::gil_scoped_release released;
    attention_varlen_backward(qv, kv, vv, ov, lv, gv, gradients, {q_offsets, kv_offsets}, o, *with);
  });
}

}  // namespace

void bind_varlen(nb::module_& m) {
  m.def("varlen_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
        nb::arg("q_offsets"), nb::arg("kv_offsets"), nb::arg("options").none());
  m.def("varlen_backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("dout"),
        nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("dbias").none(), nb::arg("dsinks").none(),
        nb::arg("dposition_bias").none(), nb::arg("dlse").none(), nb::arg("q_offsets"), nb::arg("kv_offsets"),
        nb::arg("options").none());
}

}  // namespace qkv::python
