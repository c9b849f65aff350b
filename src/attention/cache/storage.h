// The element type of a cache, for kernels, for sizes and for texts.
#pragma once

#include "kernels/cache/params.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

/// The kernels' name for it: both enumerations have the same order.
inline StoredType stored_type(CacheStorage storage) {
  static_assert(static_cast<int>(StoredType::kF16) == static_cast<int>(CacheStorage::kF16));
  static_assert(static_cast<int>(StoredType::kInt8) == static_cast<int>(CacheStorage::kInt8));
  return static_cast<StoredType>(storage);
}

template <class T>
constexpr CacheStorage storage_of() {
  if constexpr (std::is_same_v<T, double>) return CacheStorage::kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return CacheStorage::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return CacheStorage::kF16;
  return CacheStorage::kF32;
}

inline std::size_t storage_bytes(CacheStorage storage) {
  constexpr std::size_t bytes[] = {4, 8, 2, 2, 1};
  return bytes[static_cast<int>(storage)];
}

/// "f32", for texts.
inline const char* storage_name(CacheStorage storage) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "int8"};
  return names[static_cast<int>(storage)];
}

}  // namespace qkv::inline v0
