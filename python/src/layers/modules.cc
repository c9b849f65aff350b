// Shared by all modules, Linear, GELU and SiLU.
#include "layers/nn.h"
#include "qkv/nn/mlp.h"

namespace qkv::python {

namespace {

// Over rows [M, ...] of float or bf16.
template <class Body> void with_rows(const Array& x, const Body& body) {
  const auto run = [&]<class T>() {
    const Computation call;
    body.template operator()<T>(*call.context);
  };
  x.type() == Type::kBF16 ? run.template operator()<BFloat16>() : run.template operator()<float>();
}

void forward_rows(const nn::Linear& self, const nb::args& objects) {
  const Arrays a("Linear.forward", {"x", "y"}, objects);
  with_rows(a[0], [&]<class T>(Context& context) { self.forward(a[0].input<T, 2>(), a[1].output<T, 2>(), context); });
}

void backward_rows(nn::Linear& self, const nb::args& objects) {
  const Arrays a("Linear.backward", {"x", "dy", "dx?"}, objects);
  with_rows(a[0], [&]<class T>(Context& context) {
    self.backward(a[0].input<T, 2>(), a[1].input<T, 2>(), a[2].output<T, 2>(), context);
  });
}

void linear_forward(bool invariant, const nb::args& objects) {
  const Arrays a("linear_forward", {"x", "weight", "bias?", "y"}, objects);
  const Bits bits = invariant ? Bits::kInvariant : Bits::kFast;
  with_rows(a[0], [&]<class T>(Context& context) {
    nn::linear_forward(
        a[0].input<T, 2>(), a[1].input<T, 2>(), a[2].input<float, 1>(), a[3].output<T, 2>(), context, bits);
  });
}

void linear_backward(const nb::args& objects) {
  const Arrays a("linear_backward", {"x", "dy", "weight", "dx?", "dweight?", "dbias?"}, objects);
  with_rows(a[0], [&]<class T>(Context& context) {
    nn::linear_backward(a[0].input<T, 2>(), a[1].input<T, 2>(), a[2].input<T, 2>(), a[3].output<T, 2>(),
        a[4].output<float, 2>(), a[5].output<float, 1>(), context);
  });
}

void activation_forward(bool silu, const nb::args& objects) {
  const Arrays a("activation_forward", {"x", "y"}, objects);
  const Computation call;
  (silu ? nn::silu_forward : nn::gelu_forward)(a[0].input<float, 2>(), a[1].output<float, 2>(), *call.context);
}

void activation_backward(bool silu, const nb::args& objects) {
  const Arrays a("activation_backward", {"x", "dy", "dx"}, objects);
  const Computation call;
  const auto backward = silu ? nn::silu_backward : nn::gelu_backward;
  backward(a[0].input<float, 2>(), a[1].input<float, 2>(), a[2].output<float, 2>(), *call.context);
}

}  // namespace

void bind_modules(nb::module_& m) {
  m.def("linear_forward", &linear_forward, nb::arg("invariant"), nb::arg("arrays"));
  m.def("linear_backward", &linear_backward, nb::arg("arrays"));
  m.def("activation_forward", &activation_forward, nb::arg("silu"), nb::arg("arrays"));
  m.def("activation_backward", &activation_backward, nb::arg("silu"), nb::arg("arrays"));
  nb::class_<nn::Module>(m, "Module")
      .def("state_dict",
          [](const nn::Module& self, const std::string& prefix, const std::string& dtype) {
            return entries_of(self.state_dict(prefix, parse_dtype("state_dict", dtype)));
          })
      .def("gradients",
          [](const nn::Module& self, const std::string& prefix, const std::string& dtype) {
            return entries_of(self.gradients(prefix, parse_dtype("gradients", dtype)));
          })
      .def("load_state_dict",
          [](nn::Module& self, const Entries& entries, const std::string& prefix) {
            self.load_state_dict(state_dict_from("load_state_dict", entries), prefix);
          })
      .def("zero_gradients", &nn::Module::zero_gradients)
      .def_prop_ro("parameter_count", &nn::Module::parameter_count);
  nb::class_<nn::Linear, nn::Module>(m, "Linear")
      .def("__init__",
          [](nn::Linear* self, Index in_features, Index out_features, bool bias, std::uint64_t seed) {
            new (self) nn::Linear(nn::LinearOptions{in_features, out_features, bias, seed});
          })
      .def("forward", &forward_rows)
      .def("backward", &backward_rows)
      .def_prop_ro("in_features", &nn::Linear::in_features)
      .def_prop_ro("out_features", &nn::Linear::out_features)
      .def_prop_ro("has_bias", &nn::Linear::has_bias);
}

}  // namespace qkv::python
