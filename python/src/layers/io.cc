// Files of tensors: safetensors.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>

#include "layers/nn.h"
#include "qkv/io/file.h"
#include "qkv/io/safetensors.h"

namespace qkv::python {

void bind_io(nb::module_& m) {
  m.def("load_safetensors", [](const std::string& path) {
    StateDict state;
    {
      const Released released;
      state = io::load_safetensors(path);
    }
    return std::pair(entries_of(state), state.metadata);
  });
  m.def("save_safetensors",
      [](const std::string& path, const Entries& entries, const std::map<std::string, std::string>& metadata) {
        StateDict state = state_dict_from("save_safetensors", entries);
        state.metadata = metadata;
        const Released released;
        io::save_safetensors(path, state);
      });
  m.def("write_file", [](const std::string& path, const nb::bytes& bytes) {
    const std::string_view text(bytes.c_str(), bytes.size());
    const Released released;
    io::write_file_atomically(path, text);
  });
}

}  // namespace qkv::python
