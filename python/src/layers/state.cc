// State dicts and their tensors, between Python and C++.
#include <cstring>

#include "arrays/array.h"
#include "layers/nn.h"

namespace qkv::python {

namespace {

constexpr DType kTypes[] = {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
    DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

struct Bytes {
  std::vector<std::byte> held;
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(held.data()); }
};

}  // namespace

DType parse_dtype(const char* function, const std::string& name) {
  for (const DType type : kTypes) {
    if (dtype_name(type) == name) return type;
  }
  throw nb::type_error(("[" + std::string(function) + "] unknown element type " + name).c_str());
}

StateDict state_dict_from(const char* function, const Entries& entries) {
  StateDict state;
  for (const auto& [name, dtype, sizes, bytes] : entries) {
    const Array array(function, name.c_str(), bytes);
    const View<const std::uint8_t, 1> view = array;
    AnyTensor tensor;
    tensor.dtype = parse_dtype(function, dtype);
    tensor.sizes = sizes;
    tensor.bytes.resize(static_cast<std::size_t>(view.size(0)));
    if (!tensor.bytes.empty()) std::memcpy(tensor.bytes.data(), view.data(), tensor.bytes.size());
    state.add(name, std::move(tensor));
  }
  return state;
}

Entries entries_of(const StateDict& state) {
  Entries entries;
  for (const auto& [name, tensor] : state.entries()) {
    const std::vector<Index> count = {static_cast<Index>(tensor.bytes.size())};
    entries.emplace_back(
        name, std::string(dtype_name(tensor.dtype)), tensor.sizes, numpy_of<std::uint8_t>(Bytes{tensor.bytes}, count));
  }
  return entries;
}

}  // namespace qkv::python
