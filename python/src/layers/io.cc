// Files of tensors: safetensors and .npy.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "layers/nn.h"
#include "qkv/io/file.h"
#include "qkv/io/npy.h"
#include "qkv/io/safetensors.h"

namespace qkv::python {

void bind_io(nb::module_& m) {
  m.def("load_safetensors", [](const std::string& path) {
    StateDict state;
    {
      const Released released;
      state = io::load_safetensors(path);
    }
    return nb::make_tuple(entries_of(state), nb::cast(state.metadata));
  });
  m.def("save_safetensors",
      [](const std::string& path, nb::handle entries, const std::map<std::string, std::string>& metadata) {
        StateDict state = state_dict_from("save_safetensors", entries);
        state.metadata = metadata;
        const Released released;
        io::save_safetensors(path, state);
      });
  m.def("load_npy", [](const std::string& path) {
    AnyTensor tensor;
    {
      const Released released;
      tensor = io::load_npy(path);
    }
    return entry_of("", std::move(tensor));
  });
  m.def("save_npy", [](const std::string& path, nb::handle dtype, nb::handle sizes, nb::handle bytes) {
    const AnyTensor tensor = any_tensor_from("save_npy", nb::str("array"), dtype, sizes, bytes);
    const Released released;
    io::save_npy(path, tensor);
  });
  m.def("write_file", [](const std::string& path, const nb::bytes& bytes) {
    const std::string_view text(bytes.c_str(), bytes.size());
    const Released released;
    io::write_file_atomically(path, text);
  });
}

}  // namespace qkv::python
