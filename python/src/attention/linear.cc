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

// Arguments of both forward and backward.
struct LinearOptionsObject {
  LinearOptionsObject(const nb::kwargs& given, const nb::args& objects)
      : arrays("linear_attention", {"features?", "log_decay?", "beta?", "state.kv?", "state.z?"}, objects) {
    Keywords("linear_attention", given)("causal", causal)("normalized", normalized)("scale", scale)(
        "tokens_first", tokens_first)
        .word("feature_map", feature_map,
            {{"identity", FeatureMap::kIdentity}, {"relu", FeatureMap::kRelu}, {"elu+1", FeatureMap::kEluPlusOne},
                {"softmax", FeatureMap::kSoftmax}, {"unit", FeatureMap::kUnit}})
        .word("form", form, {{"chunked", LinearForm::kChunked}, {"recurrent", LinearForm::kRecurrent}})
        .end();
  }

  template <class T> LinearAttentionOptions<T> views() const {
    return {feature_map, arrays[0], causal, normalized, scale, decay<const T, 3>(arrays[1]),
        of_heads<const T, 3>(arrays[2]), {arrays[3], arrays[4]}, form, decay<const T, 4>(arrays[1])};
  }
  /// Decays or their gradient: of tokens with Rank 3, per channel with Rank 4; null where the array has the other's
  /// axes.
  template <class T, int Rank> View<T, Rank> decay(const Array& array) const {
    return (array.rank() == 4) == (Rank == 4) ? of_heads<T, Rank>(array) : View<T, Rank>();
  }
  /// The array as [B, H, T, ...].
  template <class T, int Rank> View<T, Rank> of_heads(const Array& array) const {
    const View<T, Rank> view = array;
    return tokens_first ? view.transposed(1, 2) : view;
  }

  Arrays<5> arrays;
  FeatureMap feature_map = FeatureMap::kEluPlusOne;
  LinearForm form = LinearForm::kChunked;
  bool causal = false, normalized = true, tokens_first = false;  // tokens_first: arrays are [B, T, H, ...]
  std::optional<double> scale;
};

void linear_forward(const LinearOptionsObject& options, const nb::args& objects) {
  const Arrays a("linear_attention", {"q", "k", "v", "out", "normalizer?", "final_kv?", "final_z?"}, objects);
  a.compute_wide([&]<class T>(Context& context) {
    const auto in = [&](const Array& array) { return options.of_heads<const T, 4>(array); };
    linear_attention_forward(in(a[0]), in(a[1]), in(a[2]), options.of_heads<T, 4>(a[3]), a[4], options.views<T>(),
        LinearState<T>{a[5], a[6]}, context);
  });
}

void linear_backward(const LinearOptionsObject& options, const nb::args& objects) {
  const Arrays a("linear_attention_backward",
      {"q", "k", "v", "out?", "normalizer?", "dout", "dfinal_kv?", "dfinal_z?", "dq?", "dk?", "dv?", "dlog_decay?",
          "dbeta?", "dinitial_kv?", "dinitial_z?"},
      objects);
  a.compute_wide([&]<class T>(Context& context) {
    const auto in = [&](const Array& array) { return options.of_heads<const T, 4>(array); };
    const auto to = [&](const Array& array) { return options.of_heads<T, 4>(array); };
    const LinearAttentionGradients<T> gradients{.dq = to(a[8]),
        .dk = to(a[9]),
        .dv = to(a[10]),
        .dlog_decay = options.decay<T, 3>(a[11]),
        .dbeta = options.of_heads<T, 3>(a[12]),
        .dinitial = {a[13], a[14]},
        .dfinal = {a[6], a[7]},
        .dlog_decay_channels = options.decay<T, 4>(a[11])};
    linear_attention_backward(
        in(a[0]), in(a[1]), in(a[2]), in(a[3]), a[4], in(a[5]), gradients, options.views<T>(), context);
  });
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<LinearOptionsObject>(m, "LinearOptions")
      .def("__init__", [](LinearOptionsObject* self, const nb::args& objects, const nb::kwargs& given) {
        new (self) LinearOptionsObject(given, objects);
      });
  m.def("linear_forward", &linear_forward);
  m.def("linear_backward", &linear_backward);
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
