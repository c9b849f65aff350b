// Threads, instruction set and bits of every call of this process.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "bindings.h"
#include "qkv/version.h"

namespace qkv::python {

namespace {

// Null: the library's default. Has a lock of its own: XLA's threads ask for the context without the interpreter's.
std::shared_ptr<Context> current;
std::mutex current_mutex;

/// Every call that begins afterwards has a context of other options.
template <class Change> void set_context(const Change& change) {
  const std::shared_ptr<Context> now = context();
  ContextOptions options;
  options.threads = now->threads();
  options.isa = now->isa();
  options.bits = now->bits();
  change(options);
  auto made = std::make_shared<Context>(options);
  const std::lock_guard lock(current_mutex);
  current.swap(made);
}

}  // namespace

std::shared_ptr<Context> context() {
  const std::lock_guard lock(current_mutex);
  if (current == nullptr) current = {std::shared_ptr<Context>(), &Context::default_context()};
  return current;
}

void bind_context(nb::module_& m) {
  m.def(
      "num_threads", [] { return context()->threads(); },
      "How many threads a call of this process may use; available_threads() at first.");
  m.def(
      "set_num_threads",
      [](int threads) {
        if (threads < 1)
          throw nb::value_error(("[set_num_threads] n must be at least 1: got " + std::to_string(threads)).c_str());
        set_context([&](ContextOptions& options) { options.threads = threads; });
      },
      nb::arg("n"), "Sets num_threads(), for every call that begins afterwards. Results have the same bits for any n.");
  m.def("available_threads", &available_threads, "The CPUs that this process may run on: num_threads() at first.");
  m.def(
      "isa", [] { return std::string(isa_name(context()->isa())); },
      "The instruction set whose kernels are used, one of supported_isas(): \"avx512\", say.");
  m.def(
      "set_isa",
      [](const std::string& name) { set_context([&](ContextOptions& options) { options.isa = parse_isa(name); }); },
      nb::arg("name"), "Sets isa(). The best one is chosen at first.");
  m.def(
      "bits", [] { return std::string(bits_name(context()->bits())); },
      "What every call promises of its bits: \"fast\" or \"invariant\", as attention's argument of that name.");
  m.def(
      "set_bits",
      [](const std::string& name) { set_context([&](ContextOptions& options) { options.bits = parse_bits(name); }); },
      nb::arg("name"), "Sets bits(): \"invariant\" makes every call invariant, whatever its own argument says.");
  m.def(
      "supported_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : supported_isas()) names.emplace_back(isa_name(isa));
        return names;
      },
      "The instruction sets that this CPU has kernels for, the best last.");
  // A pointer to context(): what the other modules of the package compute with (std::shared_ptr<Context> (*)()).
  m.attr("_context") = nb::capsule(reinterpret_cast<void*>(&context));
  m.attr("__version__") = QKV_VERSION;
}

}  // namespace qkv::python
