// Layers of attention: made by name, run forward and backward, stepped over a cache.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "arrays/masks.h"
#include "layers/nn.h"
#include "qkv/error.h"
#include "qkv/nn/nn.h"

namespace qkv::python {

namespace {

constexpr Word<nn::QkNorm> kQkNorms[] = {
    {"none", nn::QkNorm::kNone}, {"head", nn::QkNorm::kHead}, {"vector", nn::QkNorm::kVector}};

nn::LayerConfig config_of(const nb::kwargs& given) {
  nn::LayerConfig c;
  Keywords("nn", given)("embed_dim", c.embed_dim)("num_heads", c.num_heads)("num_kv_heads", c.num_kv_heads)(
      "head_dim", c.head_dim)("d_k", c.d_k)("length", c.length)("bias", c.bias)("output_bias", c.output_bias)(
      "norm_eps", c.norm_eps)("rotary", c.rotary)("dropout", c.dropout)("residual_dropout", c.residual_dropout)(
      "causal", c.causal)("output_proj", c.output_proj)("seed", c.seed)
      .word("qk_norm", c.qk_norm, kQkNorms)
      .word("empty_row", c.empty_row, kEmptyRows)
      .word("init", c.init, {{"linear", nn::Init::kLinear}, {"torch_mha", nn::Init::kTorchMha}})
      .end();
  return c;
}

/// body.operator()<T>() with the element type of x, and which of a pair of memories is that type's.
template <class Body> void with_layer_type(const Array& x, Body&& body) {
  x.type() == Type::kBF16 ? body.template operator()<BFloat16>() : body.template operator()<float>();
}
template <class T, class Wide, class Narrow> auto& of_type(Wide& wide, Narrow& narrow) {
  if constexpr (std::is_same_v<T, float>) return wide;
  if constexpr (!std::is_same_v<T, float>) return narrow;
}

// Values for backward; bf16: of a call on bf16.
struct SavedObject {
  nn::Saved value;
  nn::Bf16Saved bf16;
  Borrowed borrowed;
};

// Weights [B, H, T, T] before ("all") or after ("applied") dropout, or None.
nb::object forward(const nn::Layer& layer, nb::handle x, nb::handle y, const std::string& weights, SavedObject* saved,
    const MaskObject* mask, nb::handle ids, const nb::kwargs& given) {
  constexpr const char* kName = "nn.Layer.forward";
  const Array xa(kName, "x", x), ya(kName, "y", y);
  Borrowed borrowed;  // backward's only where forward was right: until then what is saved refers to the last one's
  nn::ForwardOptions options;
  options.mask = borrowed.take(mask);
  Index offset = 0;
  Keywords("nn", given)("causal", options.causal)("seed", options.seed)("first_sequence", options.first_sequence)(
      "offset", offset)("offsets", borrowed.offsets)
      .word("empty_row", options.empty_row, kEmptyRows)
      .end();
  options.positions = borrowed.positions(kName, offset, ids);
  Tensor<float> found;
  if (weights == "all") options.weights = &found;
  if (weights == "applied") options.applied = &found;
  with_layer_type(xa, [&]<class T>() {
    const View<const T, 3> from = xa;
    const View<T, 3> to = ya;
    const Computation call;
    options.context = call.context.get();
    layer.forward_into(from, to, options, saved == nullptr ? nullptr : &of_type<T>(saved->value, saved->bf16));
  });
  if (saved != nullptr) saved->borrowed = std::move(borrowed);
  return to_numpy(std::move(found));
}

void backward(nn::Layer& layer, nb::handle dy, SavedObject& saved, nb::handle dx) {
  constexpr const char* kName = "nn.Layer.backward";
  const Array dya(kName, "dy", dy), dxa(kName, "dx?", dx);
  with_layer_type(dya, [&]<class T>() {
    const View<const T, 3> from = dya;
    const View<T, 3> to = dxa;
    const Computation call;
    layer.backward_into(from, of_type<T>(saved.value, saved.bf16), to, *call.context);
  });
}

void step(const nn::Layer& layer, nb::handle x, nb::handle y, KVCache& cache, const MaskObject* mask) {
  constexpr const char* kName = "nn.Layer.step";
  const auto* attention = dynamic_cast<const nn::AttentionLayer*>(&layer);
  if (attention == nullptr) throw UnsupportedError("[nn.Layer.step] this layer has no keys and values to cache");
  const Array xa(kName, "x", x), ya(kName, "y", y);
  const Mask hides = mask == nullptr ? Mask() : mask->mask;
  nn::StepMemory memory;
  nn::Bf16StepMemory narrow;
  with_layer_type(xa, [&]<class T>() {
    const View<const T, 3> from = xa;
    const View<T, 3> to = ya;
    const Computation call;
    attention->step(from, to, cache, of_type<T>(memory, narrow), hides, *call.context);
  });
}

// Sizes of a cache that the layer can be stepped over, and its dropouts.
nb::dict sizes_of(nn::Layer& layer) {
  const auto* attention = dynamic_cast<const nn::AttentionLayer*>(&layer);
  if (attention == nullptr) throw OptionError("[nn.Layer] not a layer with projections");
  nb::dict d;
  d["num_kv_heads"] = attention->num_kv_heads();
  d["head_dim"] = attention->head_dim();
  d["dropout"] = *attention->config().dropout;
  d["residual_dropout"] = *attention->config().residual_dropout;
  return d;
}

}  // namespace

void bind_layers(nb::module_& m) {
  nb::class_<SavedObject>(m, "Saved").def(nb::init<>());
  nb::class_<nn::Layer, nn::Module>(m, "Layer")
      .def_prop_ro("embed_dim", &nn::Layer::embed_dim)
      .def_prop_ro("output_dim", &nn::Layer::output_dim)
      .def_prop_ro("num_heads", &nn::Layer::num_heads)
      .def_prop_ro("masks_have_heads", &nn::Layer::masks_have_heads)
      .def_prop_ro("sizes", &sizes_of)
      .def_prop_ro("training", &nn::Layer::training)
      .def("train", &nn::Layer::train)
      .def("forward", &forward, nb::arg("x"), nb::arg("y"), nb::arg("weights"), nb::arg("saved").none(),
          nb::arg("mask").none(), nb::arg("ids").none(), nb::arg("options"))
      .def("backward", &backward, nb::arg("dy"), nb::arg("saved"), nb::arg("dx").none())
      .def("step", &step, nb::arg("x"), nb::arg("y"), nb::arg("cache"), nb::arg("mask").none());
  m.def(
      "make_layer",
      [](const std::string& name, const nb::kwargs& given) { return nn::make_layer(name, config_of(given)).release(); },
      nb::rv_policy::take_ownership);
  m.def(
      "load_layer",
      [](const std::string& name, const Entries& entries, const nb::kwargs& given) {
        return nn::load_layer(name, state_dict_from("load_layer", entries), config_of(given)).release();
      },
      nb::rv_policy::take_ownership);
}

}  // namespace qkv::python
