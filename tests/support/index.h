// Loops over the indices of a tensor, the last axis fastest.
#pragma once

#include <array>
#include <initializer_list>
#include <type_traits>

#include "qkv/types.h"

namespace qkv::test {

/// visit(b, h, i, ..): as many axes as it has arguments, of lengths sizes[0], sizes[1], ..
template <class Visit, class... At> void for_each_index_from(const Index* sizes, const Visit& visit, At... at) {
  if constexpr (std::is_invocable_v<Visit, At...>) {
    visit(at...);
  } else {
    for (Index n = 0; n < sizes[sizeof...(At)]; ++n) for_each_index_from(sizes, visit, at..., n);
  }
}
template <class Visit, std::size_t kRank>
void for_each_index(const std::array<Index, kRank>& sizes, const Visit& visit) {
  for_each_index_from(sizes.data(), visit);
}
template <class Visit> void for_each_index(std::initializer_list<Index> sizes, const Visit& visit) {
  for_each_index_from(sizes.begin(), visit);
}

}  // namespace qkv::test
