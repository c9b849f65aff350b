// Modules that are not attention: Linear, LayerNorm, Embedding, Mlp; what all modules share; Adam over any of them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "layers/nn.h"
#include "qkv/error.h"
#include "qkv/lm/optimizer.h"
#include "qkv/nn/cross_entropy.h"
#include "qkv/nn/embedding.h"
#include "qkv/nn/layer_norm.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/mlp.h"

namespace qkv::python {

namespace {

using Modules = std::vector<nn::Module*>;

std::vector<nn::Parameter> parameters_of(const Modules& modules) {
  std::vector<nn::Parameter> all;
  for (nn::Module* module : modules) {
    for (nn::Parameter& one : module->parameters()) all.push_back(std::move(one));
  }
  return all;
}

Index count_of(const Modules& modules) {
  Index count = 0;
  for (const nn::Module* module : modules) count += module->parameter_count();
  return count;
}

// y = module(x) over rows [M, ...].
// T: the type of rows.
template <class T, class Rows>
void rows_forward(const char* function, const Rows& module, const Array& x, nb::handle y) {
  const Array ya(function, "y", y);
  const View<const T, 2> from = x;
  const View<T, 2> to = ya;
  const Computation call;
  module.forward(from, to, *call.context);
}

template <class T, class Rows>
void rows_backward(const char* function, Rows& module, const Array& x, nb::handle dy, nb::handle dx) {
  const Array dya(function, "dy", dy);
  const OptionalArray dxa(function, "dx", dx);
  const View<const T, 2> rows = x, from = dya;
  const View<T, 2> to = dxa;
  const Computation call;
  module.backward(rows, from, to, *call.context);
}

std::span<const std::int64_t> ids_of(const char* function, const Array& array) {
  const View<const Index, 1> view = array.input<Index, 1>();
  if (view.size(0) > 1 && view.stride(0) != 1) {
    throw ShapeError("[" + std::string(function) + "] ids must be contiguous: copy them first");
  }
  return {view.data(), static_cast<std::size_t>(view.size(0))};
}

void bind_rows(nb::module_& m) {
  nb::class_<nn::Linear, nn::Module>(m, "Linear")
      .def("__init__",
           [](nn::Linear* self, Index in_features, Index out_features, bool bias, std::uint64_t seed) {
             new (self) nn::Linear(nn::LinearOptions{in_features, out_features, bias, seed});
           })
      .def("forward",
           [](const nn::Linear& self, nb::handle x, nb::handle y) {
             const Array xa("Linear.forward", "x", x);
             xa.type() == Type::kBF16 ? rows_forward<BFloat16>("Linear.forward", self, xa, y)
                                      : rows_forward<float>("Linear.forward", self, xa, y);
           })
      .def(
          "backward",
          [](nn::Linear& self, nb::handle x, nb::handle dy, nb::handle dx) {
            const Array xa("Linear.backward", "x", x);
            xa.type() == Type::kBF16 ? rows_backward<BFloat16>("Linear.backward", self, xa, dy, dx)
                                     : rows_backward<float>("Linear.backward", self, xa, dy, dx);
          },
          nb::arg("x"), nb::arg("dy"), nb::arg("dx").none())
      .def_prop_ro("in_features", &nn::Linear::in_features)
      .def_prop_ro("out_features", &nn::Linear::out_features)
      .def_prop_ro("has_bias", &nn::Linear::has_bias);
  nb::class_<nn::LayerNorm, nn::Module>(m, "LayerNorm")
      .def("__init__",
           [](nn::LayerNorm* self, Index embed_dim, double eps, bool bias) {
             new (self) nn::LayerNorm(nn::LayerNormOptions{embed_dim, eps, bias});
           })
      .def("forward",
           [](const nn::LayerNorm& self, nb::handle x, nb::handle y) {
             rows_forward<float>("LayerNorm.forward", self, Array("LayerNorm.forward", "x", x), y);
           })
      .def("backward", [](nn::LayerNorm& self, nb::handle x, nb::handle dy, nb::handle dx) {
        rows_backward<float>("LayerNorm.backward", self, Array("LayerNorm.backward", "x", x), dy, dx);
      });
}

// A linear map in bf16.
void bind_bf16(nb::module_& m) {
  m.def(
      "linear",
      [](nb::handle x, nb::handle weight, nb::handle bias, nb::handle y) {
        const Array xa("linear", "x", x), wa("linear", "weight", weight), ya("linear", "y", y);
        const OptionalArray ba("linear", "bias", bias);
        const Computation call;
        nn::linear_forward(xa, wa, ba, ya, *call.context);
      },
      nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("y"));
  m.def(
      "linear_backward",
      [](nb::handle x, nb::handle dy, nb::handle weight, nb::handle dx, nb::handle dweight, nb::handle dbias) {
        constexpr const char* function = "linear_backward";
        const Array xa(function, "x", x), dya(function, "dy", dy), wa(function, "weight", weight);
        const Array dwa(function, "dweight", dweight);
        const OptionalArray dxa(function, "dx", dx), dba(function, "dbias", dbias);
        const Computation call;
        nn::linear_backward(xa, dya, wa, dxa, dwa, dba, *call.context);
      },
      nb::arg("x"), nb::arg("dy"), nb::arg("weight"), nb::arg("dx").none(), nb::arg("dweight"), nb::arg("dbias").none());
}

void bind_embedding(nb::module_& m) {
  nb::class_<nn::Embedding, nn::Module>(m, "Embedding")
      .def("__init__",
           [](nn::Embedding* self, Index num_embeddings, Index embed_dim, std::uint64_t seed) {
             new (self) nn::Embedding(nn::EmbeddingOptions{num_embeddings, embed_dim, seed});
           })
      .def("forward",
           [](const nn::Embedding& self, nb::handle ids, nb::handle y) {
             const Array ia("Embedding.forward", "ids", ids), ya("Embedding.forward", "y", y);
             const auto numbers = ids_of("Embedding.forward", ia);
             const Computation call;
             self.forward(numbers, ya, false, *call.context);
           })
      .def("backward", [](nn::Embedding& self, nb::handle ids, nb::handle dy) {
        const Array ia("Embedding.backward", "ids", ids), da("Embedding.backward", "dy", dy);
        const auto numbers = ids_of("Embedding.backward", ia);
        const Computation call;
        self.backward(numbers, da, *call.context);
      });
}

void bind_mlp(nb::module_& m) {
  nb::class_<nn::MlpSaved>(m, "MlpSaved").def(nb::init<>());
  nb::class_<nn::Mlp, nn::Module>(m, "MLP")
      .def("__init__",
           [](nn::Mlp* self, Index embed_dim, Index hidden_dim, bool bias, std::uint64_t seed) {
             new (self) nn::Mlp(nn::MlpOptions{embed_dim, hidden_dim, bias, seed});
           })
      .def("forward",
           [](const nn::Mlp& self, nb::handle x, nb::handle y, nn::MlpSaved& saved) {
             const Array xa("MLP.forward", "x", x), ya("MLP.forward", "y", y);
             const Computation call;
             self.forward(xa, ya, saved, *call.context);
           })
      .def("backward", [](nn::Mlp& self, nb::handle x, nb::handle dy, nb::handle dx, nn::MlpSaved& saved) {
        const Array xa("MLP.backward", "x", x), dya("MLP.backward", "dy", dy), dxa("MLP.backward", "dx", dx);
        const Computation call;
        self.backward(xa, dya, dxa, saved, *call.context);
      });
}

void bind_adam(nb::module_& m) {
  nb::class_<lm::Adam>(m, "Adam")
      .def("__init__",
           [](lm::Adam* self, const Modules& modules, double beta1, double beta2, double epsilon, double weight_decay) {
             new (self) lm::Adam(count_of(modules), lm::AdamOptions{beta1, beta2, epsilon, weight_decay});
           })
      .def("step",
           [](lm::Adam& self, const Modules& modules, double rate) {
             const std::vector<nn::Parameter> parameters = parameters_of(modules);
             const Released released;
             self.step(parameters, rate);
           })
      .def_prop_ro("steps", [](const lm::Adam& self) { return self.state().step; });
  m.def("clip_global_norm",
        [](const Modules& modules, double max_norm) { return lm::clip_global_norm(parameters_of(modules), max_norm); });
}

}  // namespace

void bind_modules(nb::module_& m) {
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
           [](nn::Module& self, nb::handle entries, const std::string& prefix) {
             self.load_state_dict(state_dict_from("load_state_dict", entries), prefix);
           })
      .def("zero_gradients", &nn::Module::zero_gradients)
      .def_prop_ro("parameter_count", &nn::Module::parameter_count);
  bind_rows(m);
  bind_bf16(m);
  bind_embedding(m);
  bind_mlp(m);
  bind_adam(m);
  m.def("cross_entropy", [](nb::handle logits, nb::handle targets, nb::handle dlogits) {
    const Array la("cross_entropy", "logits", logits), ta("cross_entropy", "targets", targets),
        da("cross_entropy", "dlogits", dlogits);
    const auto numbers = ids_of("cross_entropy", ta);
    const Computation call;
    return nn::cross_entropy(la, numbers, da, *call.context);
  });
}

}  // namespace qkv::python
