// Ragged batches: attention_varlen_forward and _backward.
#include "qkv/varlen.h"

#include <nanobind/stl/vector.h>

#include "attention/options.h"
#include "bindings.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, const Numbers& q_offsets,
             const Numbers& kv_offsets, const OptionsObject* options) {
  constexpr const char* kName = "attention_varlen";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const OptionalArray la(kName, "lse", lse);
  const AttentionOptions o = options_or_default(options);
  with_float_type(kName, qa, [&]<class T>() {
    const Computation call;
    attention_varlen_forward(qa, ka, va, RaggedOutputs<T>{oa, la}, {q_offsets, kv_offsets}, o, *call.context);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dbias, nb::handle dsinks, nb::handle dposition_bias, nb::handle dlse,
              const Numbers& q_offsets, const Numbers& kv_offsets, const OptionsObject* options) {
  constexpr const char* kName = "attention_varlen_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      ga(kName, "dout", dout);
  const OptionalArray dqa(kName, "dq", dq), dka(kName, "dk", dk), dva(kName, "dv", dv), dba(kName, "dbias", dbias),
      dsa(kName, "dsinks", dsinks), dpa(kName, "dposition_bias", dposition_bias), dla(kName, "dlse", dlse);
  const AttentionOptions o = options_or_default(options);
  with_float_type(kName, qa, [&]<class T>() {
    const Computation call;
    const RaggedGradients<T> gradients{
        .dq = dqa, .dk = dka, .dv = dva, .dbias = dba, .dsinks = dsa, .dposition_bias = dpa, .dlse = dla};
    attention_varlen_backward(qa, ka, va, oa, la, ga, gradients, {q_offsets, kv_offsets}, o, *call.context);
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
