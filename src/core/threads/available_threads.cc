// Affinity mask and control-group quota, versions 1 and 2. Sources: cgroups(7),
// Documentation/admin-guide/cgroup-v2.rst.
#include "core/threads/available_threads.h"

#if defined(__EMSCRIPTEN__)
#include "qkv/context.h"

/// WebAssembly without threads, and without files that could say so.
int qkv::v0::available_threads() { return 1; }
#else
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "qkv/context.h"

namespace qkv::inline v0 {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// "quota period"; "max" and -1 mean unlimited.
std::optional<double> quota_of(const std::string& text) {
  std::istringstream in(text);
  double quota = 0;
  double period = 0;
  if (!(in >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> quota_at(const fs::path& group, bool unified) {
  if (unified) return quota_of(read_text(group / "cpu.max"));
  return quota_of(read_text(group / "cpu.cfs_quota_us") + " " + read_text(group / "cpu.cfs_period_us"));
}

// A limit holds for all groups below it, so every level up to the mount counts. In a container the path may name what
// lies outside; its levels are then simply not there, and the mount itself is the container's group.
std::optional<double> tightest(const fs::path& mount, std::string_view path, bool unified) {
  std::optional<double> least = quota_at(mount, unified);
  fs::path group = mount;
  for (const fs::path& part : fs::path(path).relative_path()) {
    group /= part;
    const auto quota = quota_at(group, unified);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

bool names_cpu(std::string_view controllers) {
  std::istringstream in{std::string(controllers)};
  for (std::string name; std::getline(in, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

int affinity_cpus() {
  // The kernel may know more CPUs than cpu_set_t holds; it then returns EINVAL until the set is large enough.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    std::vector<cpu_set_t> set((CPU_ALLOC_SIZE(cpus) + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0) return CPU_COUNT_S(bytes, set.data());
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<double> cgroup_cpus(std::string_view membership, const fs::path& root) {
  std::optional<double> least;
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {  // "hierarchy:controllers:path"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && !names_cpu(controllers)) continue;
    const std::string path = line.substr(second + 1);
    for (const fs::path& mount :
        unified ? std::vector{root, root / "unified"} : std::vector{root / controllers, root / "cpu"}) {
      const auto quota = tightest(mount, path, unified);
      if (quota && (!least || *quota < *least)) least = quota;
    }
  }
  return least;
}

int available_threads() {
  int threads = affinity_cpus();
  if (const auto cpus = cgroup_cpus(read_text("/proc/self/cgroup"), "/sys/fs/cgroup")) {
    // Rounded down: a thread beyond the quota is stopped in the middle of a region, and all others wait for it.
    threads = std::min(threads, static_cast<int>(std::min(*cpus, double{kMaxThreads})));
  }
  return std::clamp(threads, 1, kMaxThreads);
}

}  // namespace qkv::inline v0
#endif
