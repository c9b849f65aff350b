// Offsets: borrowed integers of 64 or 32 bits that say where sequences begin in packed tokens. Most libraries use int32
// (cu_seqlens), this one Index; both are read without a copy.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "qkv/types.h"

namespace qkv::inline v0 {

class Offsets {
 public:
  Offsets() = default;
  /// From anything that converts to a span of either type: std::vector, std::array, std::span.
  template <class Numbers>
    requires std::convertible_to<const Numbers&, std::span<const Index>>
  Offsets(const Numbers& numbers) : wide_(std::span<const Index>(numbers).data()), size_(std::size(numbers)) {}
  template <class Numbers>
    requires std::convertible_to<const Numbers&, std::span<const std::int32_t>>
  Offsets(const Numbers& numbers) : narrow_(std::span<const std::int32_t>(numbers).data()), size_(std::size(numbers)) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Index operator[](std::size_t n) const { return narrow_ == nullptr ? wide_[n] : Index{narrow_[n]}; }
  Index front() const { return (*this)[0]; }
  Index back() const { return (*this)[size_ - 1]; }
  const void* data() const { return narrow_ == nullptr ? static_cast<const void*>(wide_) : narrow_; }
  Index element_bytes() const { return narrow_ == nullptr ? sizeof(Index) : sizeof(std::int32_t); }
  Offsets first(std::size_t n) const {
    Offsets some = *this;
    some.size_ = n;
    return some;
  }

 private:
  const Index* wide_ = nullptr;
  const std::int32_t* narrow_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace qkv::inline v0
