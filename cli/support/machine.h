// The machine's CPU and caches, by its own words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qkv::cli {

struct Cache {
  std::string name;  ///< "L1d", "L2", "L3"
  std::int64_t bytes = 0;
};

/// "AMD EPYC 9B45", or "unknown".
std::string cpu_model();
/// The features of the CPU that matter to the kernels.
std::vector<std::string> cpu_features();
/// The caches that the system reports.
std::vector<Cache> caches();

}  // namespace qkv::cli
