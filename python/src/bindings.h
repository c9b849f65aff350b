// The parts of the module _core, one for each file.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <thread>

#include "qkv/context.h"

namespace qkv::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_context(nb::module_& m);
void bind_masks(nb::module_& m);
void bind_options(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_capture(nb::module_& m);
void bind_rotary(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_scan(nb::module_& m);
void bind_step(nb::module_& m);
void bind_cache(nb::module_& m);

/// The context of every call: what set_num_threads and set_isa made, otherwise the library's default. A call holds its
/// own pointer, so that another thread may set a new one meanwhile.
std::shared_ptr<Context> context();
/// In modules beside _core, first: context() is then _core's.
void use_context();

/// While it lives, the interpreter's lock is released. Where the interpreter ends meanwhile, Python before 3.14 ends a
/// thread that asks for the lock by an unwinding, which C++ answers with std::terminate: the thread sleeps instead
/// until its process is gone.
class Released {
 public:
  Released() = default;
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_ = PyEval_SaveThread();
};

/// The context of a call that computes without the interpreter's lock. Made after the arrays of a call, whose owners
/// need it.
struct Computation {
  std::shared_ptr<Context> context = python::context();
  Released released{};
};

}  // namespace qkv::python
