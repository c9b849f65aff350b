// The module qkv._nn: layers, the language model, files and pictures.
#include "layers/nn.h"

NB_MODULE(_nn, m) {
  namespace nb = nanobind;
  using namespace qkv::python;
  nb::set_leak_warnings(false);  // what Python caches lives as long as the interpreter
  m.doc() = "Layers, the language model, files and pictures: the functions that qkv/*.py call.";
  use_context();
  bind_modules(m);
  bind_layers(m);
  bind_lm(m);
  bind_io(m);
  bind_view(m);
  bind_kinds(m);
}
