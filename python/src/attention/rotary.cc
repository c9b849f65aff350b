// Rotary positions.
#include "qkv/rotary.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "bindings.h"

namespace qkv::python {

namespace {

// x [B,H,T,D] -> y, turned forth or back.
template <bool kForward>
void turn(const Rotary& rotary, Index offset, const std::vector<Index>& offsets, const nb::args& objects) {
  const Arrays a(kForward ? "Rotary.forward" : "Rotary.backward", {"x", "y", "ids?"}, objects);
  const RotaryPositions positions{offset, offsets, a[2]};
  a.compute([&]<class T>(Context& context) {
    if constexpr (kForward) {
      rotary.forward(a[0].template input<T, 4>(), a[1], positions, context);
    } else {
      rotary.backward(a[0].template input<T, 4>(), a[1], positions, context);
    }
  });
}

RotaryLayout layout_of(bool interleaved) { return interleaved ? RotaryLayout::kInterleaved : RotaryLayout::kHalfSplit; }

}  // namespace

void bind_rotary(nb::module_& m) {
  nb::class_<RotaryOptions>(m, "RotaryOptions").def("__init__", [](RotaryOptions* self, const nb::kwargs& given) {
    RotaryOptions o;
    bool interleaved = false;
    Keywords("Rotary", given)("rotary_dim", o.rotary_dim)("base", o.base)("interleaved", interleaved)(
        "factor", o.factor)("original_context", o.original_context)("beta_fast", o.beta_fast)("beta_slow", o.beta_slow)(
        "attention_factor", o.attention_factor)("low_frequency", o.low_frequency)("high_frequency", o.high_frequency)
        .word("scaling", o.scaling,
            {{"none", RotaryScaling::kNone}, {"linear", RotaryScaling::kLinear}, {"ntk", RotaryScaling::kNtk},
                {"yarn", RotaryScaling::kYarn}, {"llama3", RotaryScaling::kLlama3}})
        .end();
    o.layout = layout_of(interleaved);
    new (self) RotaryOptions(o);
  });
  nb::class_<Rotary>(m, "Rotary")
      .def(nb::init<Index, const RotaryOptions&>())
      .def_static("from_tables",
          [](Index head_dim, nb::handle cosines, nb::handle sines, bool interleaved) {
            const Array ca("Rotary.from_tables", "cosines", cosines), sa("Rotary.from_tables", "sines", sines);
            return Rotary(head_dim, ca.input<double, 2>(), sa.input<double, 2>(), layout_of(interleaved));
          })
      .def("frequencies",
          [](const Rotary& rotary) {
            return std::vector<double>(rotary.frequencies().begin(), rotary.frequencies().end());
          })
      .def("forward", &turn<true>)
      .def("backward", &turn<false>);
}

}  // namespace qkv::python
