// The parts of the module _nn, and how tensors cross to Python.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "arrays/array.h"
#include "arrays/masks.h"
#include "bindings.h"
#include "qkv/rotary.h"
#include "qkv/state_dict.h"

namespace qkv::python {

void bind_modules(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_lm(nb::module_& m);
void bind_io(nb::module_& m);
void bind_view(nb::module_& m);
void bind_kinds(nb::module_& m);

/// Arrays and numbers that a call's options keep until backward: arrays of masks and positions, and numbers.
struct Borrowed {
  Mask take(const MaskObject* mask) {
    arrays.clear();
    offsets.clear();
    if (mask == nullptr) return {};
    arrays = mask->borrowed;
    return mask->mask;
  }
  RotaryPositions positions(const char* function, Index offset, nb::handle ids) {
    RotaryPositions made{.offset = offset, .offsets = offsets};
    if (!ids.is_none())
      made.ids = arrays.emplace_back(std::make_shared<const Array>(function, "position_ids", ids))->input<Index, 2>();
    return made;
  }

  std::vector<std::shared_ptr<const Array>> arrays;
  std::vector<Index> offsets;
};

// A state dict in Python: of each tensor its name, dtype as safetensors writes it, sizes, and an array of uint8 [n].
using Entries = std::vector<std::tuple<std::string, std::string, std::vector<Index>, nb::object>>;
StateDict state_dict_from(const char* function, const Entries& entries);
DType parse_dtype(const char* function, const std::string& name);  // TypeError for one that is not there
Entries entries_of(const StateDict& state);

}  // namespace qkv::python
