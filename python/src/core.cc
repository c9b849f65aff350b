// The module qkv._core: attention itself.
#include "bindings.h"

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  using namespace qkv::python;
  nb::set_leak_warnings(false);  // masks and options that Python caches live as long as the interpreter
  m.doc() = "Attention, forward and backward: the functions that qkv/*.py call.";
  bind_errors(m);
  bind_context(m);
  bind_masks(m);
  bind_options(m);
  bind_attention(m);
  bind_capture(m);
  bind_rotary(m);
  bind_step(m);
  bind_linear(m);
  bind_scan(m);
  bind_cache(m);
}
