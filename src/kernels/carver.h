// Cuts a block of scratch memory into pieces that start at cache lines; callers of kernels use it too. Always inlined:
// a copy compiled for one instruction set must not stand in for another's at link time.
#pragma once

#include <cstddef>

#include "qkv/types.h"

namespace qkv {

/// Rounded up to whole cache lines.
[[gnu::always_inline]] constexpr std::size_t round_to_line(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Bytes of `count` elements, rounded up to whole cache lines.
template <class E> [[gnu::always_inline]] constexpr std::size_t line_bytes(Index count) {
  return round_to_line(static_cast<std::size_t>(count) * sizeof(E));
}

/// Hands out pieces of the block at `base`, which starts at a cache line. With a null base it only counts: so the same
/// code computes how much to borrow and where everything lies.
class Carver {
 public:
  /// `used`: bytes at the front that are already taken.
  [[gnu::always_inline]] explicit Carver(void* base, std::size_t used = 0)
      : base_(static_cast<std::byte*>(base)), used_(round_to_line(used)) {}

  template <class E> [[gnu::always_inline]] E* array(Index count) {
    const std::size_t offset = used_;
    used_ += line_bytes<E>(count);
    return base_ == nullptr ? nullptr : reinterpret_cast<E*>(base_ + offset);
  }
  [[gnu::always_inline]] std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_;
};

}  // namespace qkv
