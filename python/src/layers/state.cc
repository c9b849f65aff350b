// State dicts and their tensors, between Python and C++.
#include <cstring>

#include "arrays/array.h"
#include "layers/nn.h"

namespace qkv::python {

namespace {

constexpr DType kTypes[] = {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
    DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

std::string text_of(nb::handle object) { return nb::borrow<nb::str>(object).c_str(); }

}  // namespace

DType parse_dtype(const char* function, const std::string& name) {
  for (const DType type : kTypes) {
    if (dtype_name(type) == name) return type;
  }
  throw nb::type_error(("[" + std::string(function) + "] unknown element type " + name).c_str());
}

AnyTensor any_tensor_from(const char* function, nb::handle name, nb::handle dtype, nb::handle sizes, nb::handle bytes) {
  AnyTensor made;
  made.dtype = parse_dtype(function, text_of(dtype));
  for (const nb::handle size : sizes) made.sizes.push_back(nb::cast<Index>(size));
  const std::string label = text_of(name);
  const Array array(function, label.c_str(), bytes);
  const View<const std::uint8_t, 1> view = array.input<std::uint8_t, 1>();
  made.bytes.resize(static_cast<std::size_t>(view.size(0)));
  if (!made.bytes.empty()) std::memcpy(made.bytes.data(), view.data(), made.bytes.size());
  return made;
}

StateDict state_dict_from(const char* function, nb::handle entries) {
  StateDict state;
  for (const nb::handle entry : entries) {
    const nb::tuple t = nb::borrow<nb::tuple>(entry);
    state.add(text_of(t[0]), any_tensor_from(function, t[0], t[1], t[2], t[3]));
  }
  return state;
}

nb::tuple entry_of(const std::string& name, AnyTensor&& tensor) {
  nb::list sizes;
  for (const Index size : tensor.sizes) sizes.append(size);
  const std::string dtype(dtype_name(tensor.dtype));
  const std::vector<Index> count = {static_cast<Index>(tensor.bytes.size())};
  struct Bytes {
    std::vector<std::byte> held;
    std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(held.data()); }
  };
  nb::object bytes = numpy_of<std::uint8_t>(Bytes{std::move(tensor.bytes)}, count);
  return nb::make_tuple(name.c_str(), dtype.c_str(), nb::tuple(sizes), bytes);
}

nb::list entries_of(const StateDict& state) {
  nb::list entries;
  for (const StateDict::Entry& entry : state.entries()) entries.append(entry_of(entry.name, entry.tensor.clone()));
  return entries;
}

}  // namespace qkv::python
