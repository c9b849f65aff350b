// Names in one line of an error: a file may hold 65,536.
#pragma once

#include <string>

namespace qkv::inline v0 {

/// name(one) of each, with commas between; of more than 20 the first 20, "and 3 more".
template <class List, class Name> std::string listed(const List& list, const Name& name) {
  constexpr std::size_t kMost = 20;
  std::string text;
  std::size_t count = 0;
  for (const auto& one : list) {
    if (++count <= kMost) text.append(text.empty() ? "" : ", ").append(name(one));
  }
  return count > kMost ? text + " and " + std::to_string(count - kMost) + " more" : text;
}

}  // namespace qkv::inline v0
