// Linear attention, forward and backward.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "bindings.h"
#include "qkv/convert.h"
#include "qkv/linear_attention.h"

namespace qkv::python {

namespace {

FeatureMap parse_feature_map(const std::string& name) {
  return choice<FeatureMap>("[linear_attention] feature_map", name,
                            {{"identity", FeatureMap::kIdentity},
                             {"relu", FeatureMap::kRelu},
                             {"elu+1", FeatureMap::kEluPlusOne},
                             {"softmax", FeatureMap::kSoftmax},
                             {"unit", FeatureMap::kUnit}});
}

LinearForm parse_form(const std::string& name) {
  return choice<LinearForm>("[linear_attention] form", name,
                            {{"chunked", LinearForm::kChunked}, {"recurrent", LinearForm::kRecurrent}});
}

// What forward and backward are both passed.
struct LinearOptionsObject {
  FeatureMap feature_map;
  bool causal, normalized;
  std::optional<double> scale;
  LinearForm form;
  bool tokens_first;  // arrays are [B, T, H, ...]
  OptionalArray features, log_decay, beta, initial_kv, initial_z;

  template <class T>
  LinearAttentionOptions<T> views() const {
    return {feature_map,
            features,
            causal,
            normalized,
            scale,
            decay<const T, 3>(log_decay),
            of_heads<const T, 3>(beta),
            {initial_kv, initial_z},
            form,
            decay<const T, 4>(log_decay)};
  }
  /// Decays or their gradient: of tokens with Rank 3, per channel with Rank 4; null where the array has the other's axes.
  template <class T, int Rank>
  View<T, Rank> decay(const OptionalArray& array) const {
    return (array.rank() == 4) == (Rank == 4) ? of_heads<T, Rank>(array) : View<T, Rank>();
  }
  /// The array as [B, H, T, ...].
  template <class T, int Rank, class From>
  View<T, Rank> of_heads(const From& array) const {
    const View<T, Rank> view = array;
    return tokens_first ? view.transposed(1, 2) : view;
  }
};

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle normalizer, nb::handle final_kv,
             nb::handle final_z, const LinearOptionsObject& options) {
  constexpr const char* kName = "linear_attention";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), oa(kName, "out", out);
  const OptionalArray na(kName, "normalizer", normalizer), fa(kName, "final_kv", final_kv), za(kName, "final_z", final_z);
  with_wide_type(kName, qa, [&]<class T>() {
    const Computation call;
    const auto in = [&](const Array& array) { return options.of_heads<const T, 4>(array); };
    linear_attention_forward(in(qa), in(ka), in(va), options.of_heads<T, 4>(oa), na, options.views<T>(), LinearState<T>{fa, za},
                             *call.context);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle normalizer, nb::handle dout, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dlog_decay, nb::handle dbeta, nb::handle dinitial_kv,
              nb::handle dinitial_z, nb::handle dfinal_kv, nb::handle dfinal_z, const LinearOptionsObject& options) {
  constexpr const char* kName = "linear_attention_backward";
  const Array qa(kName, "q", q), ka(kName, "k", k), va(kName, "v", v), ga(kName, "dout", dout);
  const OptionalArray oa(kName, "out", out), na(kName, "normalizer", normalizer), dqa(kName, "dq", dq), dka(kName, "dk", dk),
      dva(kName, "dv", dv), dda(kName, "dlog_decay", dlog_decay), dba(kName, "dbeta", dbeta),
      dia(kName, "dinitial_kv", dinitial_kv), dza(kName, "dinitial_z", dinitial_z), fka(kName, "dfinal_kv", dfinal_kv),
      fza(kName, "dfinal_z", dfinal_z);
  with_wide_type(kName, qa, [&]<class T>() {
    const Computation call;
    const auto in = [&](const auto& array) { return options.of_heads<const T, 4>(array); };
    const auto to = [&](const auto& array) { return options.of_heads<T, 4>(array); };
    const LinearAttentionGradients<T> gradients{.dq = to(dqa),
                                                .dk = to(dka),
                                                .dv = to(dva),
                                                .dlog_decay = options.decay<T, 3>(dda),
                                                .dbeta = options.of_heads<T, 3>(dba),
                                                .dinitial = {dia, dza},
                                                .dfinal = {fka, fza},
                                                .dlog_decay_channels = options.decay<T, 4>(dda)};
    linear_attention_backward(in(qa), in(ka), in(va), in(oa), na, in(ga), gradients, options.views<T>(), *call.context);
  });
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<LinearOptionsObject>(m, "LinearOptions");
  m.def(
      "linear_options",
      [](const std::string& feature_map, nb::handle features, bool causal, bool normalized, std::optional<double> scale,
         nb::handle log_decay, nb::handle beta, nb::handle initial_kv, nb::handle initial_z, const std::string& form,
         bool tokens_first) {
        constexpr const char* kName = "linear_attention";
        return LinearOptionsObject{parse_feature_map(feature_map),
                                   causal,
                                   normalized,
                                   scale,
                                   parse_form(form),
                                   tokens_first,
                                   {kName, "features", features},
                                   {kName, "log_decay", log_decay},
                                   {kName, "beta", beta},
                                   {kName, "state.kv", initial_kv},
                                   {kName, "state.z", initial_z}};
      },
      nb::arg("feature_map"), nb::arg("features").none(), nb::arg("causal"), nb::arg("normalized"), nb::arg("scale").none(),
      nb::arg("log_decay").none(), nb::arg("beta").none(), nb::arg("initial_kv").none(), nb::arg("initial_z").none(),
      nb::arg("form"), nb::arg("tokens_first") = false);
  m.def("linear_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("normalizer").none(),
        nb::arg("final_kv").none(), nb::arg("final_z").none(), nb::arg("options"));
  m.def("linear_backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out").none(),
        nb::arg("normalizer").none(), nb::arg("dout"), nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(),
        nb::arg("dlog_decay").none(), nb::arg("dbeta").none(), nb::arg("dinitial_kv").none(), nb::arg("dinitial_z").none(),
        nb::arg("dfinal_kv").none(), nb::arg("dfinal_z").none(), nb::arg("options"));
  m.def("convert", [](nb::handle from, nb::handle to) {
    const Array fa("convert", "from", from), ta("convert", "to", to);
    const Computation call;
    const auto between = [&]<class S>() {
      if (fa.type() == Type::kF32) return convert(fa.input<float, 4>(), ta.output<S, 4>(), *call.context);
      convert(fa.input<S, 4>(), ta.output<float, 4>(), *call.context);
    };
    const Type narrow = fa.type() == Type::kF32 ? ta.type() : fa.type();
    narrow == Type::kF16 ? between.operator()<Float16>() : between.operator()<BFloat16>();
  });
  m.def("random_features", [](std::uint64_t seed, nb::handle features) {
    const Array fa("random_features", "features", features);
    with_wide_type("random_features", fa, [&]<class T>() { random_features(seed, fa.output<T, 2>()); });
  });
}

}  // namespace qkv::python
