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

// What backward needs, and the arrays and numbers that it borrows.
struct SavedObject {
  nn::Saved value;
  nn::Bf16Saved bf16_value;  // of a call on bf16
  std::vector<std::shared_ptr<const Array>> borrowed;
  std::vector<Index> offsets;
};

std::optional<EmptyRow> parse_empty_row(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  return choice<EmptyRow>("[nn] empty_row", *name,
                          {{"zero", EmptyRow::kZero}, {"mean", EmptyRow::kMean}, {"nan", EmptyRow::kNaN}});
}

nn::QkNorm parse_qk_norm(const std::string& name) {
  return choice<nn::QkNorm>("[nn] qk_norm", name,
                            {{"none", nn::QkNorm::kNone}, {"head", nn::QkNorm::kHead}, {"vector", nn::QkNorm::kVector}});
}

nn::Init parse_init(const std::string& name) {
  return choice<nn::Init>("[nn] init", name, {{"linear", nn::Init::kLinear}, {"torch_mha", nn::Init::kTorchMha}});
}

void bind_config(nb::module_& m) {
  nb::class_<nn::LayerConfig>(m, "LayerConfig")
      .def(
          "__init__",
          [](nn::LayerConfig* self, Index embed_dim, Index num_heads, Index num_kv_heads, Index head_dim, Index d_k,
             Index length, std::optional<bool> bias, std::optional<bool> output_bias, const std::string& qk_norm,
             double norm_eps, const RotaryOptions* rotary, std::optional<float> dropout, std::optional<float> residual_dropout,
             std::optional<bool> causal, const std::optional<std::string>& empty_row, std::optional<bool> output_proj,
             const std::string& init, std::uint64_t seed) {
            nn::LayerConfig config{embed_dim, num_heads, num_kv_heads, head_dim, d_k, length, bias, output_bias};
            config.qk_norm = parse_qk_norm(qk_norm);
            config.norm_eps = norm_eps;
            if (rotary != nullptr) config.rotary = *rotary;
            config.dropout = dropout;
            config.residual_dropout = residual_dropout;
            config.causal = causal;
            config.empty_row = parse_empty_row(empty_row);
            config.output_proj = output_proj;
            config.init = parse_init(init);
            config.seed = seed;
            new (self) nn::LayerConfig(config);
          },
          nb::kw_only(), nb::arg("embed_dim") = 0, nb::arg("num_heads") = 0, nb::arg("num_kv_heads") = 0,
          nb::arg("head_dim") = 0, nb::arg("d_k") = 0, nb::arg("length") = 0, nb::arg("bias") = nb::none(),
          nb::arg("output_bias") = nb::none(), nb::arg("qk_norm") = "none", nb::arg("norm_eps") = 1e-6,
          nb::arg("rotary") = nb::none(), nb::arg("dropout") = nb::none(), nb::arg("residual_dropout") = nb::none(),
          nb::arg("causal") = nb::none(), nb::arg("empty_row") = nb::none(), nb::arg("output_proj") = nb::none(),
          nb::arg("init") = "linear", nb::arg("seed") = 0);
}

/// body.operator()<T>() with the element type of x, and which of a pair of memories is that type's.
template <class Body>
void with_layer_type(const Array& x, Body&& body) {
  x.type() == Type::kBF16 ? body.template operator()<BFloat16>() : body.template operator()<float>();
}
template <class T, class Wide, class Narrow>
auto& of_type(Wide& wide, Narrow& narrow) {
  if constexpr (std::is_same_v<T, float>) return wide;
  if constexpr (!std::is_same_v<T, float>) return narrow;
}

/// What a call is passed besides x and y.
struct CallObject {
  nn::ForwardOptions options;
  std::vector<std::shared_ptr<const Array>> borrowed;
  std::vector<Index> offsets;
};

CallObject make_call(const MaskObject* mask, std::optional<bool> causal, const std::optional<std::string>& empty_row,
                     std::uint64_t seed, Index first_sequence, Index offset, std::vector<Index> offsets, nb::handle ids) {
  CallObject call;
  if (mask != nullptr) {
    call.options.mask = mask->mask;
    call.borrowed = mask->borrowed;
  }
  call.options.causal = causal;
  call.options.empty_row = parse_empty_row(empty_row);
  call.options.seed = seed;
  call.options.first_sequence = first_sequence;
  call.options.positions.offset = offset;
  call.offsets = std::move(offsets);
  if (!ids.is_none()) {
    call.borrowed.push_back(std::make_shared<const Array>("nn.Layer.forward", "position_ids", ids));
    call.options.positions.ids = call.borrowed.back()->input<Index, 2>();
  }
  return call;
}

// Weights [B, H, T, T] before ("all") or after ("applied") dropout, or None.
nb::object forward(const nn::Layer& layer, nb::handle x, nb::handle y, const CallObject* call, const std::string& weights,
                   SavedObject* saved) {
  constexpr const char* kName = "nn.Layer.forward";
  const Array xa(kName, "x", x), ya(kName, "y", y);
  nn::ForwardOptions options;
  if (call != nullptr) options = call->options;
  std::vector<Index> offsets;
  if (call != nullptr) offsets = call->offsets;
  if (saved != nullptr) {
    saved->borrowed.clear();
    if (call != nullptr) saved->borrowed = call->borrowed;
    saved->offsets = std::move(offsets);
  }
  options.positions.offsets = saved != nullptr ? saved->offsets : offsets;
  Tensor<float> seen;
  if (weights == "all") options.weights = &seen;
  if (weights == "applied") options.applied = &seen;
  const std::shared_ptr<Context> with = context();
  options.context = with.get();
  with_layer_type(xa, [&]<class T>() {
    const View<const T, 3> from = xa;
    const View<T, 3> to = ya;
    const Released released;
    layer.forward_into(from, to, options, saved == nullptr ? nullptr : &of_type<T>(saved->value, saved->bf16_value));
  });
  return to_numpy(std::move(seen));
}

void backward(nn::Layer& layer, nb::handle dy, SavedObject& saved, nb::handle dx) {
  constexpr const char* kName = "nn.Layer.backward";
  const Array dya(kName, "dy", dy);
  const OptionalArray dxa(kName, "dx", dx);
  with_layer_type(dya, [&]<class T>() {
    const View<const T, 3> from = dya;
    const View<T, 3> to = dxa;
    const Computation call;
    layer.backward_into(from, of_type<T>(saved.value, saved.bf16_value), to, *call.context);
  });
}

struct StepObject {
  nn::StepMemory memory;
  nn::Bf16StepMemory bf16_memory;  // of a step on bf16
};

void step(const nn::Layer& layer, nb::handle x, nb::handle y, KVCache& cache, StepObject& work, const MaskObject* mask) {
  constexpr const char* kName = "nn.Layer.step";
  const auto* attention = dynamic_cast<const nn::AttentionLayer*>(&layer);
  if (attention == nullptr) throw UnsupportedError("[nn.Layer.step] this layer has no keys and values to cache");
  const Array xa(kName, "x", x), ya(kName, "y", y);
  const Mask none;
  const Mask& hides = mask == nullptr ? none : mask->mask;
  with_layer_type(xa, [&]<class T>() {
    const View<const T, 3> from = xa;
    const View<T, 3> to = ya;
    const Computation call;
    attention->step(from, to, cache, of_type<T>(work.memory, work.bf16_memory), hides, *call.context);
  });
}

nn::AttentionLayer& attention_layer(const char* function, nn::Layer& layer) {
  auto* attention = dynamic_cast<nn::AttentionLayer*>(&layer);
  if (attention == nullptr) throw OptionError("[" + std::string(function) + "] not a layer with projections");
  return *attention;
}

template <class To, class From>
nn::Layer* converted(const char* function, nn::Layer& layer, To (*convert)(const From&)) {
  const auto* from = dynamic_cast<const From*>(&layer);
  if (from == nullptr) throw OptionError("[" + std::string(function) + "] the layer has another form");
  return new To(convert(*from));
}

nn::Layer* convert(nn::Layer& layer, const std::string& to) {
  if (to == "v1") return converted("to_v1", layer, &nn::to_v1);
  if (to == "v2") return converted("to_v2", layer, &nn::to_v2);
  if (to == "v3") return converted("to_v3", layer, &nn::to_v3);
  return converted("to_v4", layer, &nn::to_v4);
}

const char* name_of(EmptyRow rule) { return rule == EmptyRow::kZero ? "zero" : rule == EmptyRow::kMean ? "mean" : "nan"; }

const char* name_of(nn::QkNorm norm) {
  return norm == nn::QkNorm::kNone ? "none" : norm == nn::QkNorm::kHead ? "head" : "vector";
}

// What Python needs besides Layer's own: sizes of a cache that the layer can be stepped over, and what it says of itself.
nb::dict sizes_of(nn::Layer& layer) {
  const nn::AttentionLayer& attention = attention_layer("nn.Layer", layer);
  nb::dict d;
  d["num_kv_heads"] = attention.num_kv_heads();
  d["head_dim"] = attention.head_dim();
  d["has_bias"] = attention.has_bias();
  d["has_output_bias"] = attention.has_output_bias();
  d["has_output_projection"] = attention.has_output_projection();
  d["causal"] = *attention.config().causal;
  d["dropout"] = *attention.config().dropout;
  d["residual_dropout"] = *attention.config().residual_dropout;
  d["empty_row"] = name_of(*attention.config().empty_row);
  d["qk_norm"] = name_of(attention.qk_norm());
  d["norm_eps"] = attention.config().norm_eps;
  return d;
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_config(m);
  nb::class_<SavedObject>(m, "Saved").def(nb::init<>());
  nb::class_<StepObject>(m, "StepMemory").def(nb::init<>());
  nb::class_<CallObject>(m, "Call");
  m.def("call", &make_call, nb::arg("mask").none(), nb::arg("causal").none(), nb::arg("empty_row").none(), nb::arg("seed"),
        nb::arg("first_sequence"), nb::arg("offset"), nb::arg("offsets"), nb::arg("ids").none());
  nb::class_<nn::Layer, nn::Module>(m, "Layer")
      .def_prop_ro("name", [](const nn::Layer& layer) { return std::string(layer.name()); })
      .def_prop_ro("embed_dim", &nn::Layer::embed_dim)
      .def_prop_ro("output_dim", &nn::Layer::output_dim)
      .def_prop_ro("num_heads", &nn::Layer::num_heads)
      .def_prop_ro("masks_have_heads", &nn::Layer::masks_have_heads)
      .def_prop_ro("sizes", &sizes_of)
      .def_prop_ro("training", &nn::Layer::training)
      .def("train", &nn::Layer::train)
      .def("forward", &forward, nb::arg("x"), nb::arg("y"), nb::arg("call").none(), nb::arg("weights"), nb::arg("saved").none())
      .def("backward", &backward, nb::arg("dy"), nb::arg("saved"), nb::arg("dx").none())
      .def("step", &step, nb::arg("x"), nb::arg("y"), nb::arg("cache"), nb::arg("memory"), nb::arg("mask").none())
      .def("convert", &convert, nb::rv_policy::take_ownership);
  m.def(
      "make_layer",
      [](const std::string& name, const nn::LayerConfig& config) { return nn::make_layer(name, config).release(); },
      nb::rv_policy::take_ownership);
  m.def(
      "load_layer",
      [](const std::string& name, nb::handle entries, const nn::LayerConfig& config) {
        return nn::load_layer(name, state_dict_from("load_layer", entries), config).release();
      },
      nb::rv_policy::take_ownership);
}

}  // namespace qkv::python
