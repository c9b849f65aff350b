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

RotaryScaling parse_scaling(const std::string& name) {
  return choice<RotaryScaling>("[Rotary] scaling", name,
                               {{"none", RotaryScaling::kNone},
                                {"linear", RotaryScaling::kLinear},
                                {"ntk", RotaryScaling::kNtk},
                                {"yarn", RotaryScaling::kYarn},
                                {"llama3", RotaryScaling::kLlama3}});
}

// x [B,H,T,D] -> y, turned forth or back.
template <bool kForward>
void turn(const Rotary& rotary, nb::handle x, nb::handle y, Index offset, const std::vector<Index>& offsets, nb::handle ids) {
  constexpr const char* kName = kForward ? "Rotary.forward" : "Rotary.backward";
  const Array xa(kName, "x", x), ya(kName, "y", y);
  const OptionalArray ia(kName, "ids", ids);
  const RotaryPositions positions{offset, offsets, ia};
  with_float_type(kName, xa, [&]<class T>() {
    const Computation call;
    if constexpr (kForward) {
      rotary.forward(xa.input<T, 4>(), ya, positions, *call.context);
    } else {
      rotary.backward(xa.input<T, 4>(), ya, positions, *call.context);
    }
  });
}

}  // namespace

void bind_rotary(nb::module_& m) {
  nb::class_<RotaryOptions>(m, "RotaryOptions")
      .def(
          "__init__",
          [](RotaryOptions* self, Index rotary_dim, double base, bool interleaved, const std::string& scaling, double factor,
             Index original_context, double beta_fast, double beta_slow, std::optional<double> attention_factor,
             double low_frequency, double high_frequency) {
            RotaryOptions options;
            options.rotary_dim = rotary_dim;
            options.base = base;
            options.layout = interleaved ? RotaryLayout::kInterleaved : RotaryLayout::kHalfSplit;
            options.scaling = parse_scaling(scaling);
            options.factor = factor;
            options.original_context = original_context;
            options.beta_fast = beta_fast;
            options.beta_slow = beta_slow;
            options.attention_factor = attention_factor;
            options.low_frequency = low_frequency;
            options.high_frequency = high_frequency;
            new (self) RotaryOptions(options);
          },
          nb::kw_only(), nb::arg("rotary_dim") = 0, nb::arg("base") = 10000.0, nb::arg("interleaved") = false,
          nb::arg("scaling") = "none", nb::arg("factor") = 1.0, nb::arg("original_context") = 0, nb::arg("beta_fast") = 32.0,
          nb::arg("beta_slow") = 1.0, nb::arg("attention_factor").none() = nb::none(), nb::arg("low_frequency") = 1.0,
          nb::arg("high_frequency") = 4.0);
  nb::class_<Rotary>(m, "Rotary")
      .def(nb::init<Index, const RotaryOptions&>())
      .def_static("from_tables",
                  [](Index head_dim, nb::handle cosines, nb::handle sines, bool interleaved) {
                    const Array ca("Rotary.from_tables", "cosines", cosines), sa("Rotary.from_tables", "sines", sines);
                    return Rotary(head_dim, ca.input<double, 2>(), sa.input<double, 2>(),
                                  interleaved ? RotaryLayout::kInterleaved : RotaryLayout::kHalfSplit);
                  })
      .def_prop_ro("head_dim", &Rotary::head_dim)
      .def_prop_ro("rotary_dim", &Rotary::rotary_dim)
      .def_prop_ro("attention_factor", &Rotary::attention_factor)
      .def("frequencies",
           [](const Rotary& rotary) { return std::vector<double>(rotary.frequencies().begin(), rotary.frequencies().end()); })
      .def("forward", &turn<true>, nb::arg("x"), nb::arg("y"), nb::arg("offset"), nb::arg("offsets"), nb::arg("ids").none())
      .def("backward", &turn<false>, nb::arg("x"), nb::arg("y"), nb::arg("offset"), nb::arg("offsets"), nb::arg("ids").none());
}

}  // namespace qkv::python
