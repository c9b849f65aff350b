// Asks the CPU and the operating system what they can run. AArch64: Linux, Documentation/arch/arm64/elf_hwcaps.rst and
// sve.rst.
#include "core/cpu.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 8> kNames = {
    "scalar", "avx2", "avx512", "avx512bf16", "amx", "neon", "sve256", "sve512"};

// src/CMakeLists.txt defines QKV_FOR_EACH_ISA(X) and QKV_FOR_EACH_BF16_ISA(X): X(name) for those of this build.
#define QKV_NAME(name) #name,
constexpr std::string_view kBuilt[] = {QKV_FOR_EACH_ISA(QKV_NAME) QKV_FOR_EACH_BF16_ISA(QKV_NAME)};
#undef QKV_NAME

#if defined(__x86_64__)
/// Clang 16's __builtin_cpu_supports does not know the name. It counts only together with AVX2, whose test checks the
/// registers.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// AMX-TILE and AMX-BF16: Intel SDM, CPUID leaf 7.
bool has_amx() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_bf16) != 0 && (edx & amx_tile) != 0;
}

/// Linux keeps no room for a process's tiles until it asks: Documentation/arch/x86/xstate.rst.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}
#endif

std::vector<IsaCandidate> ask_cpu() {
  std::vector<IsaCandidate> candidates{{Isa::kScalar, {}}};
#if defined(__x86_64__)
  struct Feature {
    std::string_view name;
    bool there;
  };
  const auto add = [&](Isa isa, std::initializer_list<Feature> wanted) {
    std::string obstacle = candidates.size() > 1 ? candidates.back().obstacle
                                                 : std::string();  // each needs all that the previous one needs
    for (const Feature& feature : wanted) {
      if (obstacle.empty() && !feature.there) obstacle.append("this CPU has no ").append(feature.name);
    }
    candidates.push_back({isa, std::move(obstacle)});
  };
  // The compiler's own test: it asks the CPU and at whether the operating system saves the registers (XCR0).
  __builtin_cpu_init();
  add(Isa::kAvx2, {{"avx2", __builtin_cpu_supports("avx2") != 0}, {"fma", __builtin_cpu_supports("fma") != 0},
                      {"f16c", has_f16c()}});
  add(Isa::kAvx512,
      {{"avx512f", __builtin_cpu_supports("avx512f") != 0}, {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
          {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
          {"avx512vl", __builtin_cpu_supports("avx512vl") != 0}});
  add(Isa::kAvx512Bf16, {{"avx512_bf16", __builtin_cpu_supports("avx512bf16") != 0}});
  add(Isa::kAmx, {{"amx_bf16", has_amx()}});
  if (candidates.back().obstacle.empty() && !may_use_tiles()) {
    candidates.back().obstacle = "the operating system does not let this process use AMX tiles";
  }
#elif defined(__aarch64__)
  candidates.push_back({Isa::kNeon, {}});  // part of the architecture
#if defined(__linux__)
  // The vector length is a property of a thread, and new threads inherit it; it is read where the first context is
  // created. Code compiled for a fixed length runs at no other length.
  const bool sve = (::getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
  const int answer = sve ? ::prctl(PR_SVE_GET_VL) : 0;
  const int bits = 8 * (answer & PR_SVE_VL_LEN_MASK);
  for (const auto& [isa, wanted] : {std::pair(Isa::kSve256, 256), std::pair(Isa::kSve512, 512)}) {
    std::string obstacle;
    if (!sve) obstacle = "this CPU has no SVE";
    if (sve && bits != wanted) obstacle = "the SVE vectors here have " + std::to_string(bits) + " bits";
    candidates.push_back({isa, std::move(obstacle)});
  }
#endif
#endif
  for (IsaCandidate& candidate : candidates) {
    const bool built = std::ranges::find(kBuilt, isa_name(candidate.isa)) != std::ranges::end(kBuilt);
    if (candidate.obstacle.empty() && !built) candidate.obstacle = "this program was built without its kernels";
  }
  return candidates;
}

std::string supported_names() {
  std::string text;
  for (const Isa isa : supported_isas()) text.append(text.empty() ? "" : ", ").append(isa_name(isa));
  return text;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<std::size_t>(isa)]; }

const std::vector<IsaCandidate>& isa_candidates() {
  static const std::vector<IsaCandidate> candidates = ask_cpu();
  return candidates;
}

bool prefers_l2_prefetch() {
#if defined(__x86_64__)
  static const bool zen4 = __builtin_cpu_is("amdfam19h") != 0 && __builtin_cpu_supports("avx512f") != 0;
  return zen4;
#else
  return false;
#endif
}

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found;
    for (const IsaCandidate& candidate : isa_candidates()) {
      if (candidate.obstacle.empty()) found.push_back(candidate.isa);
    }
    return found;
  }();
  return isas;
}

Isa parse_isa(std::string_view name) {
  const auto& isas = supported_isas();
  const auto found = std::find_if(isas.begin(), isas.end(), [&](Isa isa) { return isa_name(isa) == name; });
  check<OptionError>(found != isas.end(), "parse_isa", "isa must be in this build and supported by this CPU (",
      supported_names, "): got \"", name, "\"");
  return *found;
}

}  // namespace qkv::inline v0
