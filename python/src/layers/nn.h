// What each file of the module _nn binds, and how tensors cross over to Python. Not: the face that people call (qkv/nn,
// qkv/lm.py, qkv/io.py, qkv/plotting), which adds defaults and documentation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arrays/array.h"
#include "arrays/masks.h"
#include "bindings.h"
#include "qkv/rotary.h"
#include "qkv/state_dict.h"

namespace qkv::python {

void bind_modules(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_latent(nb::module_& m);
void bind_lm(nb::module_& m);
void bind_io(nb::module_& m);
void bind_view(nb::module_& m);
void bind_kinds(nb::module_& m);

/// What a call's options read until backward: arrays of masks and positions, and numbers.
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

// A state dict in Python is a list of (name, dtype, sizes, bytes): dtype as safetensors writes it, bytes an array of
// uint8 [n].
StateDict state_dict_from(const char* function, nb::handle entries);
DType parse_dtype(const char* function, const std::string& name);  // TypeError for one that is not there
nb::list entries_of(const StateDict& state);
AnyTensor any_tensor_from(const char* function, nb::handle name, nb::handle dtype, nb::handle sizes, nb::handle bytes);
nb::tuple entry_of(const std::string& name, AnyTensor&& tensor);

}  // namespace qkv::python
