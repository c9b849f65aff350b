// What each file of the module _nn binds, and how tensors cross over to Python. Not: the face that people call (qkv/nn,
// qkv/lm.py, qkv/io.py, qkv/plotting.py), which adds defaults and documentation.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "qkv/state_dict.h"
#include "qkv/tensor.h"

namespace qkv::python {

void bind_modules(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_latent(nb::module_& m);
void bind_lm(nb::module_& m);
void bind_io(nb::module_& m);
void bind_view(nb::module_& m);
void bind_kinds(nb::module_& m);

/// A NumPy array that owns `memory`, which holds `data` of these sizes.
template <class T, class Memory>
nb::object numpy_of(Memory&& memory, const std::vector<Index>& sizes) {
  auto* held = new Memory(std::forward<Memory>(memory));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Memory*>(p); });
  const std::vector<std::size_t> shape(sizes.begin(), sizes.end());
  return nb::cast(nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner));
}

/// Without a copy; None of a tensor that was never filled.
inline nb::object to_numpy(Tensor<float>&& tensor) {
  if (tensor.data() == nullptr) return nb::none();
  const std::vector<Index> sizes = tensor.sizes();
  return numpy_of<float>(std::move(tensor), sizes);
}

// A state dict in Python is a list of (name, dtype, sizes, bytes): dtype as safetensors writes it, bytes an array of uint8 [n].
StateDict state_dict_from(const char* function, nb::handle entries);
DType parse_dtype(const char* function, const std::string& name);  // TypeError for one that is not there
nb::list entries_of(const StateDict& state);
AnyTensor any_tensor_from(const char* function, nb::handle name, nb::handle dtype, nb::handle sizes, nb::handle bytes);
nb::tuple entry_of(const std::string& name, AnyTensor&& tensor);

}  // namespace qkv::python
