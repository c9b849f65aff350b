// attention_forward, attention_backward and what stands beside them, dense and ragged. Every function writes into
// arrays that the Python layer made; arrays are the last arguments.
#include "qkv/attention.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>

#include "attention/options.h"
#include "qkv/derivatives.h"
#include "qkv/top_keys.h"
#include "qkv/varlen.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;

void forward(const OptionsObject* options, CaptureObject* capture, const std::string& kind, const nb::args& objects) {
  const Arrays a("attention", {"q", "k", "v?", "out?", "lse?", "weights?", "lse_low?"}, objects);
  const AttentionOptions o = options_or_default(options, capture);
  a.compute([&]<class T>(Context& context) {
    const View<const T, 4> q = a[0], k = a[1], v = a[2];
    attention_forward(q, k, v, outputs_of<T>(a[3], a[4], a[5], kind, a[6]), o, context);
  });
}

void backward(const OptionsObject* options, CaptureObject* capture, const nb::args& objects) {
  const Arrays a("attention_backward",
      {"q", "k", "v", "out", "lse", "dout", "dlse?", "lse_low?", "dq?", "dk?", "dv?", "dbias?", "dsinks?",
          "dposition_bias?"},
      objects);
  const AttentionOptions o = options_or_default(options, capture);
  a.compute([&]<class T>(Context& context) {
    const AttentionGradients<T> gradients{.dq = a[8],
        .dk = a[9],
        .dv = a[10],
        .dbias = a[11],
        .dsinks = a[12],
        .dposition_bias = a[13],
        .dlse = a[6],
        .lse_low = a[7]};
    attention_backward(a[0].input<T, 4>(), a[1], a[2], a[3], a[4], a[5], gradients, o, context);
  });
}

void varlen_forward(
    const OptionsObject* options, const Numbers& q_offsets, const Numbers& kv_offsets, const nb::args& objects) {
  const Arrays a("attention_varlen", {"q", "k", "v", "out", "lse?"}, objects);
  const AttentionOptions o = options_or_default(options);
  a.compute([&]<class T>(Context& context) {
    attention_varlen_forward(
        a[0].input<T, 3>(), a[1], a[2], RaggedOutputs<T>{a[3], a[4]}, {q_offsets, kv_offsets}, o, context);
  });
}

void varlen_backward(
    const OptionsObject* options, const Numbers& q_offsets, const Numbers& kv_offsets, const nb::args& objects) {
  const Arrays a("attention_varlen_backward",
      {"q", "k", "v", "out", "lse", "dout", "dlse?", "dq?", "dk?", "dv?", "dbias?", "dsinks?", "dposition_bias?"},
      objects);
  const AttentionOptions o = options_or_default(options);
  a.compute([&]<class T>(Context& context) {
    const RaggedGradients<T> gradients{
        .dq = a[7], .dk = a[8], .dv = a[9], .dbias = a[10], .dsinks = a[11], .dposition_bias = a[12], .dlse = a[6]};
    attention_varlen_backward(
        a[0].input<T, 3>(), a[1], a[2], a[3], a[4], a[5], gradients, {q_offsets, kv_offsets}, o, context);
  });
}

void jvp(const OptionsObject* options, const nb::args& objects) {
  const Arrays a("attention_jvp", {"q", "k", "v", "lse", "tq?", "tk?", "tv?", "tbias?", "tout", "tlse?"}, objects);
  const AttentionOptions o = options_or_default(options);
  a.compute_wide([&]<class T>(Context& context) {
    attention_jvp(a[0], a[1], a[2], a[3], AttentionTangents<T>{a[4], a[5], a[6], a[7]}, a[8], a[9], o, context);
  });
}

void double_backward(const OptionsObject* options, const nb::args& objects) {
  const Arrays a("attention_double_backward",
      {"q", "k", "v", "out", "lse", "dout", "dlse?", "ddq?", "ddk?", "ddv?", "ddbias?", "gq?", "gk?", "gv?", "gdout?",
          "gbias?", "gdlse?"},
      objects);
  const AttentionOptions o = options_or_default(options);
  a.compute_wide([&]<class T>(Context& context) {
    const AttentionSecondGradients<T> made{
        .gq = a[11], .gk = a[12], .gv = a[13], .gdout = a[14], .gbias = a[15], .gdlse = a[16], .dlse = a[6]};
    const AttentionTangents<T> cotangents{a[7], a[8], a[9], a[10]};
    attention_double_backward(a[0], a[1], a[2], a[3], a[4], a[5], cotangents, made, o, context);
  });
}

nb::dict plan(const OptionsObject* options, const nb::args& objects) {
  const Arrays a("attention", {"q", "k", "v"}, objects);
  const AttentionOptions o = options_or_default(options);
  AttentionPlan plan;
  a.compute([&]<class T>(Context& context) { plan = attention_plan(a[0].input<T, 4>(), a[1], a[2], o, context); });
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

void merge(nb::sequence outs, nb::sequence lses, const nb::args& objects) {
  const Arrays a("merge_attention", {"out", "lse"}, objects);
  std::deque<Array> parts;
  for (const nb::handle out : outs) parts.emplace_back("merge_attention", "outs", out);
  const std::size_t count = parts.size();
  for (const nb::handle lse : lses) parts.emplace_back("merge_attention", "lses", lse);
  a.compute([&]<class T>(Context& context) {
    std::vector<View<const T, 4>> of_outs;
    std::vector<View<const Accumulator<T>, 3>> of_lses;
    for (std::size_t n = 0; n < parts.size(); ++n)
      n < count ? of_outs.push_back(parts[n]) : of_lses.push_back(parts[n]);
    merge_attention(of_outs, of_lses, a[0].output<T, 4>(), a[1], context);
  });
}

void best_keys(const MaskObject& mask, const nb::args& objects) {
  const Arrays a("top_keys", {"q_index", "k_index", "weights", "index"}, objects);
  a.compute([&]<class T>(Context& context) {
    if constexpr (!std::is_same_v<T, double>) {  // the Python layer refuses them
      const View<const T, 4> q = a[0];
      const View<const T, 3> k = a[1];
      const View<const float, 3> w = a[2];
      const View<std::int32_t, 4> best = a[3];
      top_keys(q, k, w, best, {.mask = mask.mask}, context);
    }
  });
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto options = nb::arg("options").none(), capture = nb::arg("capture").none();
  const auto arrays = nb::arg("arrays");
  m.def("forward", &forward, options, capture, nb::arg("kind"), arrays);
  m.def("backward", &backward, options, capture, arrays);
  m.def("varlen_forward", &varlen_forward, options, nb::arg("q_offsets"), nb::arg("kv_offsets"), arrays);
  m.def("varlen_backward", &varlen_backward, options, nb::arg("q_offsets"), nb::arg("kv_offsets"), arrays);
  m.def("jvp", &jvp, options, arrays);
  m.def("double_backward", &double_backward, options, arrays);
  m.def("plan", &plan, options, arrays);
  m.def("merge", &merge);
  m.def("top_keys", &best_keys);
  m.def("dropout_factors", [](double p, std::uint64_t seed, Index first_sequence, nb::handle factors) {
    const Array fa("dropout_factors", "factors", factors);
    dropout_factors({p, seed, true, first_sequence}, fa.output<float, 4>());
  });
}

}  // namespace qkv::python
