// The part of a list of cases that a test runs: every n-th, another n-th for each type, so that the types together run
// more than each; all of them where QKV_TEST_CASES is "all" (scripts/verify-release).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <vector>

#include "qkv/types.h"

namespace qkv::test {

/// Does QKV_TEST_CASES ask for every case?
inline bool all_cases() {
  const char* asked = std::getenv("QKV_TEST_CASES");
  return asked != nullptr && std::string_view(asked) == "all";
}

/// 0 to 3.
template <class T> inline constexpr std::size_t kTypeNumber = std::is_same_v<T, float>      ? 0
                                                              : std::is_same_v<T, double>   ? 1
                                                              : std::is_same_v<T, BFloat16> ? 2
                                                                                            : 3;

/// Every `step`-th case of the list; T's begin at its share of a step.
template <class T, class Case> std::vector<Case> part_for(const std::vector<Case>& list, std::size_t step) {
  if (all_cases()) return list;
  std::vector<Case> part;
  for (std::size_t n = kTypeNumber<T> * step / 4; n < list.size(); n += step) part.push_back(list[n]);
  return part;
}

}  // namespace qkv::test
