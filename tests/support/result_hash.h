// A hash over the bits of every result that a check compares, per instruction set: two builds that print the same
// hashes for the same cases are bit-identical. FNV-1a, 64 bits, over 8 bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "qkv/tensor.h"

namespace qkv::test {

class ResultHash {
 public:
  /// Results that follow belong to this instruction set.
  void use(const std::string& isa) { current_ = &hashes_.try_emplace(isa, kStart).first->second; }

  template <class T> void add(const Tensor<T>& result) {
    if (current_ == nullptr) use("any");
    const auto bytes = static_cast<std::size_t>(result.count()) * sizeof(T);
    const char* data = reinterpret_cast<const char*>(result.data());
    for (std::size_t at = 0; at < bytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
      *current_ = (*current_ ^ word) * 0x100000001B3u;
      *current_ ^= *current_ >> 29;  // carries of the product go upwards only
    }
  }

  /// Hash by instruction set of what was added since the last call.
  std::map<std::string, std::uint64_t> take() {
    current_ = nullptr;
    return std::exchange(hashes_, {});
  }

 private:
  static constexpr std::uint64_t kStart = 0xCBF29CE484222325u;
  std::map<std::string, std::uint64_t> hashes_;
  std::uint64_t* current_ = nullptr;
};

/// One for the program: the sweep and the tests run one case at a time.
inline ResultHash& result_hash() {
  static ResultHash hash;
  return hash;
}

}  // namespace qkv::test
