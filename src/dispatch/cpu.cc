// Which instruction sets this build holds and this CPU and operating system can run. Not: which kernel a call takes.
#include <algorithm>
#include <array>
#include <string>

#include "core/check.h"
#include "qkv/context.h"

namespace qkv {
inline namespace v0 {
namespace {

struct IsaFacts {
  Isa isa;
  std::string_view name;
};

// Slowest first, as src/CMakeLists.txt compiles them.
constexpr std::array kIsas = {IsaFacts{Isa::kScalar, "scalar"}, IsaFacts{Isa::kAvx2, "avx2"}, IsaFacts{Isa::kAvx512, "avx512"}};

// The compiler's own test: it looks at the CPU and at whether the operating system saves the registers (XCR0).
bool cpu_runs(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return cpu_runs(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == Isa::kScalar;
}

std::string supported_names() {
  std::string text;
  for (const Isa isa : supported_isas()) text.append(text.empty() ? "" : ", ").append(isa_name(isa));
  return text;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kIsas[static_cast<std::size_t>(isa)].name; }

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found;
    for (const IsaFacts& facts : kIsas) {
      if (cpu_runs(facts.isa)) found.push_back(facts.isa);
    }
    return found;
  }();
  return isas;
}

Isa parse_isa(std::string_view name) {
  const auto& isas = supported_isas();
  const auto found = std::find_if(isas.begin(), isas.end(), [&](Isa isa) { return isa_name(isa) == name; });
  check<OptionError>(found != isas.end(), "parse_isa", "isa must be one that this build holds and this CPU runs (",
                     supported_names, "): got \"", name, "\"");
  return *found;
}

}  // namespace v0
}  // namespace qkv
