// The module qkv._nn: layers, the language model, files and pictures. Not: attention itself (core.cc), whose masks, errors and
// context it uses: importing it imports qkv._core.
#include "layers/nn.h"

namespace qkv::python {

namespace {

using ContextFunction = std::shared_ptr<Context> (*)();
ContextFunction core_context = nullptr;  // _core's: one pool of threads in the process

}  // namespace

std::shared_ptr<Context> context() { return core_context(); }

void take_context(const nb::module_& core) {
  const nb::capsule capsule = nb::borrow<nb::capsule>(core.attr("_context"));
  core_context = reinterpret_cast<ContextFunction>(capsule.data());
}

}  // namespace qkv::python

NB_MODULE(_nn, m) {
  namespace nb = nanobind;
  using namespace qkv::python;
  nb::set_leak_warnings(false);  // what Python caches lives as long as the interpreter
  m.doc() = "Layers, the language model, files and pictures: the functions that qkv/*.py call.";
  take_context(nb::module_::import_("qkv._core"));
  bind_modules(m);
  bind_layers(m);
  bind_lm(m);
  bind_io(m);
  bind_view(m);
}
