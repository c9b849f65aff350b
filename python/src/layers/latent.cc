// MultiHeadLatentAttention, and its steps over a cache.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "layers/nn.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::python {

namespace {

struct LatentSavedObject {
  nn::LatentSaved value;
  Borrowed borrowed;
};

using Latent = nn::MultiHeadLatentAttention;

void make(Latent* self, const nb::kwargs& given) {
  nn::LatentAttentionConfig c;
  Keywords("nn.MultiHeadLatentAttention", given)("embed_dim", c.embed_dim)("num_heads", c.num_heads)(
      "q_lora_rank", c.q_lora_rank)("kv_lora_rank", c.kv_lora_rank)("qk_nope_head_dim", c.qk_nope_head_dim)(
      "qk_rope_head_dim", c.qk_rope_head_dim)("v_head_dim", c.v_head_dim)("bias", c.bias)("norm_eps", c.norm_eps)(
      "scale", c.scale)("rotary", c.rotary)("causal", c.causal)("seed", c.seed)
      .end();
  new (self) Latent(c);
}

void forward(const Latent& self, LatentSavedObject& saved, const MaskObject* mask, std::optional<bool> causal,
    Index offset, std::vector<Index> offsets, nb::handle ids, nb::handle x, nb::handle y) {
  constexpr const char* kName = "nn.MultiHeadLatentAttention.forward";
  const Array xa(kName, "x", x), ya(kName, "y", y);
  nn::LatentOptions options{.causal = causal};
  options.mask = saved.borrowed.take(mask);
  saved.borrowed.offsets = std::move(offsets);
  options.positions = saved.borrowed.positions(kName, offset, ids);
  const View<const float, 3> from = xa;
  const View<float, 3> to = ya;
  const Computation call;
  self.forward(from, to, saved.value, options, *call.context);
}

void backward(Latent& self, nb::handle dy, LatentSavedObject& saved, nb::handle dx) {
  constexpr const char* kName = "nn.MultiHeadLatentAttention.backward";
  const Array da(kName, "dy", dy), xa(kName, "dx?", dx);
  const View<const float, 3> from = da;
  const View<float, 3> to = xa;
  const Computation call;
  self.backward(from, saved.value, to, *call.context);
}

void step(
    const Latent& self, nb::handle x, nb::handle y, KVCache& cache, const MaskObject* mask, const std::string& form) {
  constexpr const char* kName = "nn.MultiHeadLatentAttention.step";
  const Array xa(kName, "x", x), ya(kName, "y", y);
  using Form = Latent::Form;
  const Form how = choice<Form>("[nn.MultiHeadLatentAttention.step] form", form,
      {{"auto", Form::kAuto}, {"absorbed", Form::kAbsorbed}, {"materialised", Form::kMaterialised}});
  const View<const float, 3> from = xa;
  const View<float, 3> to = ya;
  nn::LatentStepMemory memory;
  const Computation call;
  self.step(from, to, cache, memory, mask == nullptr ? Mask() : mask->mask, how, *call.context);
}

}  // namespace

void bind_latent(nb::module_& m) {
  nb::class_<LatentSavedObject>(m, "LatentSaved").def(nb::init<>());
  nb::class_<Latent, nn::Module>(m, "MultiHeadLatentAttention")
      .def("__init__", &make)
      .def("forward", &forward, nb::arg("saved"), nb::arg("mask").none(), nb::arg("causal").none(), nb::arg("offset"),
          nb::arg("offsets"), nb::arg("ids").none(), nb::arg("x"), nb::arg("y"))
      .def("backward", &backward, nb::arg("dy"), nb::arg("saved"), nb::arg("dx").none())
      .def("step", &step, nb::arg("x"), nb::arg("y"), nb::arg("cache"), nb::arg("mask").none(), nb::arg("form"));
}

}  // namespace qkv::python
