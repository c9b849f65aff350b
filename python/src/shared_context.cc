// The context of calls in modules beside qkv._core: _core's, so that a process has one pool of threads.
#include "bindings.h"

namespace qkv::python {

namespace {

using ContextFunction = std::shared_ptr<Context> (*)();
ContextFunction core_context = nullptr;

}  // namespace

std::shared_ptr<Context> context() { return core_context(); }

void use_context() {
  const nb::capsule capsule = nb::borrow<nb::capsule>(nb::module_::import_("qkv._core").attr("_context"));
  core_context = reinterpret_cast<ContextFunction>(capsule.data());
}

}  // namespace qkv::python
