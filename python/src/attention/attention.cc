// attention_forward, attention_backward and what stands beside them. Every function writes into arrays that the Python layer
// made; the interpreter's lock is released while it computes.
#include "qkv/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention/capture.h"
#include "attention/options.h"
#include "bindings.h"

namespace qkv::python {

namespace {

using Optional = std::optional<Array>;

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle weights, bool applied,
             const OptionsObject* options, CaptureObject* capture) {
  constexpr const char* kName = "attention";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const Optional la = optional_array(kName, "lse", lse), wa = optional_array(kName, "weights", weights);
  AttentionOptions o = options_or_default(options);
  if (capture != nullptr) o.capture = {capture->look, capture->seen};
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>();
    const auto ov = oa.output<T, 4>();
    const auto lv = output_or_null<Accumulator<T>, 3>(la);
    const auto wv = output_or_null<Accumulator<T>, 4>(wa);
    const nb::gil_scoped_release released;
    const auto kind = applied ? WeightsKind::kApplied : WeightsKind::kSoftmax;
    attention_forward(qv, kv, vv, {.out = ov, .lse = lv, .weights = wv, .kind = kind}, o, *with);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dbias, nb::handle dsinks, nb::handle dposition_bias, nb::handle dlse,
              bool accumulate, const OptionsObject* options, CaptureObject* capture) {
  constexpr const char* kName = "attention_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      ga(kName, "dout", dout);
  const Optional dqa = optional_array(kName, "dq", dq), dka = optional_array(kName, "dk", dk),
                 dva = optional_array(kName, "dv", dv), dba = optional_array(kName, "dbias", dbias),
                 dsa = optional_array(kName, "dsinks", dsinks), dpa = optional_array(kName, "dposition_bias", dposition_bias),
                 dla = optional_array(kName, "dlse", dlse);
  AttentionOptions o = options_or_default(options);
  if (capture != nullptr) o.capture = {capture->look, capture->seen};
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    using Sum = Accumulator<T>;
    AttentionGradients<T> gradients;
    gradients.dq = output_or_null<T, 4>(dqa);
    gradients.dk = output_or_null<T, 4>(dka);
    gradients.dv = output_or_null<T, 4>(dva);
    gradients.dbias = output_or_null<Sum, 4>(dba);
    gradients.dsinks = output_or_null<Sum, 1>(dsa);
    gradients.dposition_bias = output_or_null<Sum, 2>(dpa);
    gradients.dlse = input_or_null<Sum, 3>(dla);
    gradients.accumulate = accumulate;
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>(), ov = oa.input<T, 4>(),
               gv = ga.input<T, 4>();
    const auto lv = la.input<Sum, 3>();
    const nb::gil_scoped_release released;
    attention_backward(qv, kv, vv, ov, lv, gv, gradients, o, *with);
  });
}

void weights(nb::handle q, nb::handle k, nb::handle weights, bool applied, const OptionsObject* options) {
  constexpr const char* kName = "attention_weights";
  const Array qa(kName, "q", q), ka(kName, "k", k), wa(kName, "weights", weights);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  with_float_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>();
    const auto wv = wa.output<Accumulator<T>, 4>();
    const nb::gil_scoped_release released;
    attention_forward(qv, kv, {}, {.weights = wv, .kind = applied ? WeightsKind::kApplied : WeightsKind::kSoftmax}, o, *with);
  });
}

nb::dict plan_dict(const AttentionPlan& plan) {
  nb::dict d;
  d["algorithm"] = plan.algorithm;
  d["isa"] = std::string(isa_name(plan.isa));
  d["threads"] = plan.threads;
  d["query_tile"] = plan.query_tile;
  d["key_tile"] = plan.key_tile;
  d["work_items"] = plan.work_items;
  d["full_tiles"] = plan.full_tiles;
  d["partial_tiles"] = plan.partial_tiles;
  d["skipped_tiles"] = plan.skipped_tiles;
  d["forward_flops"] = plan.forward_flops;
  d["backward_flops"] = plan.backward_flops;
  d["forward_scratch_bytes"] = plan.forward_scratch_bytes;
  d["forward_shared_bytes"] = plan.forward_shared_bytes;
  d["backward_scratch_bytes"] = plan.backward_scratch_bytes;
  d["backward_shared_bytes"] = plan.backward_shared_bytes;
  d["position_bias_bytes"] = plan.position_bias_bytes;
  d["mask_bytes"] = plan.mask_bytes;
  d["skipped"] = plan.skipped;
  return d;
}

nb::dict plan(nb::handle q, nb::handle k, nb::handle v, const OptionsObject* options) {
  constexpr const char* kName = "attention_plan";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v);
  const AttentionOptions o = options_or_default(options);
  const std::shared_ptr<Context> with = context();
  nb::dict result;
  with_float_type(kName, qa, [&]<class T>() {
    result = plan_dict(attention_plan(qa.input<T, 4>(), ka.input<T, 4>(), va.input<T, 4>(), o, *with));
  });
  return result;
}

std::vector<Array> arrays(const char* function, const char* name, nb::sequence objects) {
  std::vector<Array> made;
  made.reserve(nb::len(objects));
  for (const nb::handle object : objects) made.emplace_back(function, name, object);
  return made;
}

void merge(nb::sequence outs, nb::sequence lses, nb::handle out, nb::handle lse) {
  constexpr const char* kName = "merge_attention";
  const std::vector<Array> oas = arrays(kName, "outs", outs), las = arrays(kName, "lses", lses);
  const Array oa(kName, "out", out), la(kName, "lse", lse);
  with_float_type(kName, oa, [&]<class T>() {
    std::vector<View<const T, 4>> ovs;
    std::vector<View<const Accumulator<T>, 3>> lvs;
    for (const Array& part : oas) ovs.push_back(part.input<T, 4>());
    for (const Array& part : las) lvs.push_back(part.input<Accumulator<T>, 3>());
    const auto ov = oa.output<T, 4>();
    const auto lv = la.output<Accumulator<T>, 3>();
    const std::shared_ptr<Context> with = context();
    const nb::gil_scoped_release released;
    merge_attention(ovs, lvs, ov, lv, *with);
  });
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
        nb::arg("weights").none(), nb::arg("applied"), nb::arg("options").none(), nb::arg("capture").none());
  m.def("backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("dout"),
        nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("dbias").none(), nb::arg("dsinks").none(),
        nb::arg("dposition_bias").none(), nb::arg("dlse").none(), nb::arg("accumulate"), nb::arg("options").none(),
        nb::arg("capture").none());
  m.def("weights", &weights, nb::arg("q"), nb::arg("k"), nb::arg("weights"), nb::arg("applied"), nb::arg("options").none());
  m.def("plan", &plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("options").none());
  m.def("merge", &merge);
  m.def("dropout_factors", [](double p, std::uint64_t seed, Index first_sequence, nb::handle factors) {
    const Array fa("dropout_factors", "factors", factors);
    dropout_factors({p, seed, true, first_sequence}, fa.output<float, 4>());
  });
}

}  // namespace qkv::python
