// attention_forward, attention_backward and what stands beside them. Every function writes into arrays that the Python layer
// made; the interpreter's lock is released while it computes.
#include "qkv/attention.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "attention/options.h"
#include "bindings.h"
#include "qkv/top_keys.h"

namespace qkv::python {

namespace {

WeightsKind parse_kind(const std::string& name) {
  return choice<WeightsKind>(
      "[attention] kind", name,
      {{"softmax", WeightsKind::kSoftmax}, {"applied", WeightsKind::kApplied}, {"scores", WeightsKind::kScores}});
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle weights,
             const std::string& kind, const OptionsObject* options, CaptureObject* capture, nb::handle lse_low) {
  constexpr const char* kName = "attention";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const OptionalArray la(kName, "lse", lse), wa(kName, "weights", weights), low(kName, "lse_low", lse_low);
  const AttentionOptions o = options_or_default(options, capture);
  with_float_type(kName, qa, [&]<class T>() {
    const Computation call;
    const AttentionOutputs<T> outputs{.out = oa, .lse = la, .weights = wa, .kind = parse_kind(kind), .lse_low = low};
    attention_forward(qa, ka, va, outputs, o, *call.context);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dbias, nb::handle dsinks, nb::handle dposition_bias, nb::handle dlse,
              bool accumulate, const OptionsObject* options, CaptureObject* capture, nb::handle lse_low) {
  constexpr const char* kName = "attention_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out), la(kName, "lse", lse),
      ga(kName, "dout", dout);
  const OptionalArray dqa(kName, "dq", dq), dka(kName, "dk", dk), dva(kName, "dv", dv), dba(kName, "dbias", dbias),
      dsa(kName, "dsinks", dsinks), dpa(kName, "dposition_bias", dposition_bias), dla(kName, "dlse", dlse),
      low(kName, "lse_low", lse_low);
  const AttentionOptions o = options_or_default(options, capture);
  with_float_type(kName, qa, [&]<class T>() {
    const Computation call;
    const AttentionGradients<T> gradients{.dq = dqa,
                                          .dk = dka,
                                          .dv = dva,
                                          .dbias = dba,
                                          .dsinks = dsa,
                                          .dposition_bias = dpa,
                                          .dlse = dla,
                                          .accumulate = accumulate,
                                          .lse_low = low};
    attention_backward(qa, ka, va, oa, la, ga, gradients, o, *call.context);
  });
}

void weights(nb::handle q, nb::handle k, nb::handle weights, const std::string& kind, const OptionsObject* options) {
  constexpr const char* kName = "attention_weights";
  const Array qa(kName, "q", q), ka(kName, "k", k), wa(kName, "weights", weights);
  const AttentionOptions o = options_or_default(options);
  with_float_type(kName, qa, [&]<class T>() {
    const Computation call;
    const AttentionOutputs<T> outputs{.weights = wa, .kind = parse_kind(kind)};
    attention_forward(qa, ka, {}, outputs, o, *call.context);
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
  nb::dict result;
  with_float_type(kName, qa, [&]<class T>() { result = plan_dict(attention_plan(qa.input<T, 4>(), ka, va, o, *context())); });
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
    for (const Array& part : oas) ovs.push_back(part);
    for (const Array& part : las) lvs.push_back(part);
    const Computation call;
    merge_attention(ovs, lvs, oa, la, *call.context);
  });
}

void best_keys(nb::handle q_index, nb::handle k_index, nb::handle weights, nb::handle index, const MaskObject& mask) {
  constexpr const char* kName = "top_keys";
  const Array qa(kName, "q_index", q_index), ka(kName, "k_index", k_index), wa(kName, "weights", weights),
      ia(kName, "index", index);
  const auto run = [&]<class T>() {
    const View<const T, 4> q = qa;
    const View<const T, 3> k = ka;
    const View<const float, 3> w = wa;
    const View<std::int32_t, 4> best = ia;
    const Computation call;
    top_keys(q, k, w, best, {.mask = mask.mask}, *call.context);
  };
  if (qa.type() == Type::kBF16) return run.operator()<BFloat16>();
  if (qa.type() == Type::kF16) return run.operator()<Float16>();
  run.operator()<float>();
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
        nb::arg("weights").none(), nb::arg("kind"), nb::arg("options").none(), nb::arg("capture").none(),
        nb::arg("lse_low").none() = nb::none());
  m.def("backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("dout"),
        nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("dbias").none(), nb::arg("dsinks").none(),
        nb::arg("dposition_bias").none(), nb::arg("dlse").none(), nb::arg("accumulate"), nb::arg("options").none(),
        nb::arg("capture").none(), nb::arg("lse_low").none() = nb::none());
  m.def("weights", &weights, nb::arg("q"), nb::arg("k"), nb::arg("weights"), nb::arg("kind"), nb::arg("options").none());
  m.def("plan", &plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("options").none());
  m.def("merge", &merge);
  m.def("top_keys", &best_keys);
  m.def("dropout_factors", [](double p, std::uint64_t seed, Index first_sequence, nb::handle factors) {
    const Array fa("dropout_factors", "factors", factors);
    dropout_factors({p, seed, true, first_sequence}, fa.output<float, 4>());
  });
}

}  // namespace qkv::python
