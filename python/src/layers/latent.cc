// MultiHeadLatentAttention, and its steps over a cache.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "arrays/masks.h"
#include "layers/nn.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::python {

namespace {

struct LatentSavedObject {
  nn::LatentSaved value;
  std::vector<std::shared_ptr<const Array>> borrowed;
  std::vector<Index> offsets;
};

nn::MultiHeadLatentAttention::Form parse_form(const std::string& name) {
  using Form = nn::MultiHeadLatentAttention::Form;
  return choice<Form>("[nn.MultiHeadLatentAttention.step] form", name,
                      {{"auto", Form::kAuto}, {"absorbed", Form::kAbsorbed}, {"materialised", Form::kMaterialised}});
}

}  // namespace

void bind_latent(nb::module_& m) {
  using Latent = nn::MultiHeadLatentAttention;
  nb::class_<LatentSavedObject>(m, "LatentSaved").def(nb::init<>());
  nb::class_<nn::LatentStepMemory>(m, "LatentStepMemory").def(nb::init<>());
  nb::class_<Latent, nn::Module>(m, "MultiHeadLatentAttention")
      .def(
          "__init__",
          [](Latent* self, Index embed_dim, Index num_heads, Index q_lora_rank, Index kv_lora_rank, Index nope, Index rope,
             Index v_head_dim, bool bias, double norm_eps, std::optional<double> scale, const RotaryOptions& rotary,
             bool causal, std::uint64_t seed) {
            new (self) Latent({embed_dim, num_heads, q_lora_rank, kv_lora_rank, nope, rope, v_head_dim, bias, norm_eps, scale,
                               rotary, causal, seed});
          },
          nb::arg("embed_dim"), nb::arg("num_heads"), nb::arg("q_lora_rank"), nb::arg("kv_lora_rank"),
          nb::arg("qk_nope_head_dim"), nb::arg("qk_rope_head_dim"), nb::arg("v_head_dim"), nb::arg("bias"), nb::arg("norm_eps"),
          nb::arg("scale").none(), nb::arg("rotary"), nb::arg("causal"), nb::arg("seed"))
      .def(
          "forward",
          [](const Latent& self, nb::handle x, nb::handle y, LatentSavedObject& saved, const MaskObject* mask,
             std::optional<bool> causal, Index offset, std::vector<Index> offsets, nb::handle ids) {
            constexpr const char* kName = "nn.MultiHeadLatentAttention.forward";
            const Array xa(kName, "x", x), ya(kName, "y", y);
            nn::LatentOptions options{.causal = causal};
            saved.borrowed.clear();
            if (mask != nullptr) {
              options.mask = mask->mask;
              saved.borrowed = mask->borrowed;
            }
            saved.offsets = std::move(offsets);
            options.positions = {.offset = offset, .offsets = saved.offsets};
            if (!ids.is_none()) {
              saved.borrowed.push_back(std::make_shared<const Array>(kName, "position_ids", ids));
              options.positions.ids = saved.borrowed.back()->input<Index, 2>();
            }
            const View<const float, 3> from = xa;
            const View<float, 3> to = ya;
            const Computation call;
            self.forward(from, to, saved.value, options, *call.context);
          },
          nb::arg("x"), nb::arg("y"), nb::arg("saved"), nb::arg("mask").none(), nb::arg("causal").none(), nb::arg("offset"),
          nb::arg("offsets"), nb::arg("ids").none())
      .def(
          "backward",
          [](Latent& self, nb::handle dy, LatentSavedObject& saved, nb::handle dx) {
            constexpr const char* kName = "nn.MultiHeadLatentAttention.backward";
            const Array da(kName, "dy", dy);
            const OptionalArray xa(kName, "dx", dx);
            const View<const float, 3> from = da;
            const View<float, 3> to = xa;
            const Computation call;
            self.backward(from, saved.value, to, *call.context);
          },
          nb::arg("dy"), nb::arg("saved"), nb::arg("dx").none())
      .def(
          "step",
          [](const Latent& self, nb::handle x, nb::handle y, KVCache& cache, nn::LatentStepMemory& memory,
             const MaskObject* mask, const std::string& form) {
            constexpr const char* kName = "nn.MultiHeadLatentAttention.step";
            const Array xa(kName, "x", x), ya(kName, "y", y);
            const Latent::Form how = parse_form(form);
            const View<const float, 3> from = xa;
            const View<float, 3> to = ya;
            const Computation call;
            self.step(from, to, cache, memory, mask == nullptr ? Mask() : mask->mask, how, *call.context);
          },
          nb::arg("x"), nb::arg("y"), nb::arg("cache"), nb::arg("memory"), nb::arg("mask").none(), nb::arg("form"));
}

}  // namespace qkv::python
