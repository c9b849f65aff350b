#include "support/machine.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string_view>

namespace qkv::cli {
namespace {

/// The text after "name : " on the first such line of /proc/cpuinfo.
std::string cpuinfo(std::string_view name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace

std::string cpu_model() {
  std::string model = cpuinfo("model name");
  if (!model.empty()) return model;
  // AArch64 has numbers instead of a name.
  const std::string implementer = cpuinfo("CPU implementer"), part = cpuinfo("CPU part");
  return part.empty() ? "unknown" : "implementer " + implementer + ", part " + part;
}

std::vector<std::string> cpu_features() {
  std::istringstream flags(" " + cpuinfo("flags") + " " + cpuinfo("Features"));  // x86-64, AArch64
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const std::string_view wanted :
        {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16",
            "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm"}) {
      if (flag == wanted) found.push_back(flag);
    }
  }
  return found;
}

std::vector<Cache> caches() {
  std::vector<Cache> found;
  const auto ask = [&](const char* name, int key) {
    const long bytes = ::sysconf(key);
    if (bytes > 0) found.push_back({name, bytes});
  };
  ask("L1d", _SC_LEVEL1_DCACHE_SIZE);
  ask("L2", _SC_LEVEL2_CACHE_SIZE);
  ask("L3", _SC_LEVEL3_CACHE_SIZE);
  return found;
}

}  // namespace qkv::cli
