// Linear attention, forward and backward.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays/array.h"
#include "bindings.h"
#include "qkv/error.h"
#include "qkv/linear_attention.h"

namespace qkv::python {

namespace {

using Optional = std::optional<Array>;

FeatureMap parse_feature_map(const std::string& name) {
  if (name == "identity") return FeatureMap::kIdentity;
  if (name == "relu") return FeatureMap::kRelu;
  if (name == "elu+1") return FeatureMap::kEluPlusOne;
  if (name == "softmax") return FeatureMap::kSoftmax;
  throw OptionError("[linear_attention] feature_map must be \"identity\", \"relu\", \"elu+1\" or \"softmax\": got \"" + name +
                    "\"");
}

LinearForm parse_form(const std::string& name) {
  if (name == "chunked") return LinearForm::kChunked;
  if (name == "recurrent") return LinearForm::kRecurrent;
  throw OptionError("[linear_attention] form must be \"chunked\" or \"recurrent\": got \"" + name + "\"");
}

// What forward and backward are both passed.
struct LinearOptionsObject {
  FeatureMap feature_map;
  bool causal, normalized;
  std::optional<double> scale;
  LinearForm form;
  Optional features, log_decay, beta, initial_kv, initial_z;

  template <class T>
  LinearAttentionOptions<T> views() const {
    LinearAttentionOptions<T> options;
    options.feature_map = feature_map;
    options.features = input_or_null<T, 2>(features);
    options.causal = causal;
    options.normalized = normalized;
    options.scale = scale;
    options.log_decay = input_or_null<T, 3>(log_decay);
    options.beta = input_or_null<T, 3>(beta);
    options.initial = {input_or_null<T, 4>(initial_kv), input_or_null<T, 3>(initial_z)};
    options.form = form;
    return options;
  }
};

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle normalizer, nb::handle final_kv,
             nb::handle final_z, const LinearOptionsObject& options) {
  constexpr const char* kName = "linear_attention";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const Optional na = optional_array(kName, "normalizer", normalizer), fa = optional_array(kName, "final_kv", final_kv),
                 za = optional_array(kName, "final_z", final_z);
  const std::shared_ptr<Context> with = context();
  with_wide_type(kName, qa, [&]<class T>() {
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>();
    const auto ov = oa.output<T, 4>();
    const auto nv = output_or_null<T, 3>(na);
    const LinearState<T> final{output_or_null<T, 4>(fa), output_or_null<T, 3>(za)};
    const auto views = options.views<T>();
    const nb::gil_scoped_release released;
    linear_attention_forward(qv, kv, vv, ov, nv, views, final, *with);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle normalizer, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dlog_decay, nb::handle dbeta, nb::handle dinitial_kv,
              nb::handle dinitial_z, nb::handle dfinal_kv, nb::handle dfinal_z, const LinearOptionsObject& options) {
  constexpr const char* kName = "linear_attention_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), ga(kName, "dout", dout);
  const Optional oa = optional_array(kName, "out", out), na = optional_array(kName, "normalizer", normalizer),
                 dqa = optional_array(kName, "dq", dq), dka = optional_array(kName, "dk", dk),
                 dva = optional_array(kName, "dv", dv), dda = optional_array(kName, "dlog_decay", dlog_decay),
                 dba = optional_array(kName, "dbeta", dbeta), dia = optional_array(kName, "dinitial_kv", dinitial_kv),
                 dza = optional_array(kName, "dinitial_z", dinitial_z), fka = optional_array(kName, "dfinal_kv", dfinal_kv),
                 fza = optional_array(kName, "dfinal_z", dfinal_z);
  const std::shared_ptr<Context> with = context();
  with_wide_type(kName, qa, [&]<class T>() {
    LinearAttentionGradients<T> gradients;
    gradients.dq = output_or_null<T, 4>(dqa);
    gradients.dk = output_or_null<T, 4>(dka);
    gradients.dv = output_or_null<T, 4>(dva);
    gradients.dlog_decay = output_or_null<T, 3>(dda);
    gradients.dbeta = output_or_null<T, 3>(dba);
    gradients.dinitial = {output_or_null<T, 4>(dia), output_or_null<T, 3>(dza)};
    gradients.dfinal = {input_or_null<T, 4>(fka), input_or_null<T, 3>(fza)};
    const auto qv = qa.input<T, 4>(), kv = ka.input<T, 4>(), vv = va.input<T, 4>(), gv = ga.input<T, 4>();
    const auto ov = input_or_null<T, 4>(oa);
    const auto nv = input_or_null<T, 3>(na);
    const auto views = options.views<T>();
    const nb::gil_scoped_release released;
    linear_attention_backward(qv, kv, vv, ov, nv, gv, gradients, views, *with);
  });
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<LinearOptionsObject>(m, "LinearOptions");
  m.def(
      "linear_options",
      [](const std::string& feature_map, nb::handle features, bool causal, bool normalized, std::optional<double> scale,
         nb::handle log_decay, nb::handle beta, nb::handle initial_kv, nb::handle initial_z, const std::string& form) {
        constexpr const char* kName = "linear_attention";
        return LinearOptionsObject{parse_feature_map(feature_map),
                                   causal,
                                   normalized,
                                   scale,
                                   parse_form(form),
                                   optional_array(kName, "features", features),
                                   optional_array(kName, "log_decay", log_decay),
                                   optional_array(kName, "beta", beta),
                                   optional_array(kName, "state.kv", initial_kv),
                                   optional_array(kName, "state.z", initial_z)};
      },
      nb::arg("feature_map"), nb::arg("features").none(), nb::arg("causal"), nb::arg("normalized"), nb::arg("scale").none(),
      nb::arg("log_decay").none(), nb::arg("beta").none(), nb::arg("initial_kv").none(), nb::arg("initial_z").none(),
      nb::arg("form"));
  m.def("linear_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("normalizer").none(),
        nb::arg("final_kv").none(), nb::arg("final_z").none(), nb::arg("options"));
  m.def("linear_backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out").none(),
        nb::arg("normalizer").none(), nb::arg("dout"), nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(),
        nb::arg("dlog_decay").none(), nb::arg("dbeta").none(), nb::arg("dinitial_kv").none(), nb::arg("dinitial_z").none(),
        nb::arg("dfinal_kv").none(), nb::arg("dfinal_z").none(), nb::arg("options"));
  m.def("random_features", [](std::uint64_t seed, nb::handle features) {
    const Array fa("random_features", "features", features);
    with_wide_type("random_features", fa, [&]<class T>() { random_features(seed, fa.output<T, 2>()); });
  });
}

}  // namespace qkv::python
