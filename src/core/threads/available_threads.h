// How many CPUs a process may use, from what the operating system's files say.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace qkv::inline v0 {

/// A larger number of threads is treated as a mistake.
inline constexpr int kMaxThreads = 1024;

/// CPUs' worth of time that the control groups leave to this process, the tightest of all levels; none when unlimited.
/// `membership` is the text of /proc/self/cgroup, `root` is where the hierarchies are mounted (/sys/fs/cgroup).
/// Version 2: cpu.max. Version 1: cpu.cfs_quota_us and cpu.cfs_period_us below cpu/ or cpu,cpuacct/.
std::optional<double> cgroup_cpus(std::string_view membership, const std::filesystem::path& root);

}  // namespace qkv::inline v0
