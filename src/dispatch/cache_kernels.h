// From an instruction set to its kernels on caches, and from public names to theirs. Not: which set to take (core/context).
#pragma once

#include "dispatch/tables.h"
#include "kernels/cache_params.h"
#include "qkv/context.h"
#include "qkv/kv_cache.h"

namespace qkv {
inline namespace v0 {

const CacheTable& cache_table(Isa isa);

template <class T>
const CacheKernels<T>& cache_kernels_of(Isa isa) {
  return for_element<T>(cache_table(isa));
}

inline StoredType stored_type(CacheStorage storage) {
  switch (storage) {
    case CacheStorage::kF64:
      return StoredType::kF64;
    case CacheStorage::kBF16:
      return StoredType::kBF16;
    case CacheStorage::kF16:
      return StoredType::kF16;
    case CacheStorage::kInt8:
      return StoredType::kInt8;
    default:
      return StoredType::kF32;
  }
}

template <class T>
constexpr CacheStorage storage_of() {
  if constexpr (std::is_same_v<T, double>) return CacheStorage::kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return CacheStorage::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return CacheStorage::kF16;
  return CacheStorage::kF32;
}

inline std::size_t storage_bytes(CacheStorage storage) {
  if (storage == CacheStorage::kF64) return 8;
  if (storage == CacheStorage::kF32) return 4;
  return storage == CacheStorage::kInt8 ? 1 : 2;
}

/// "f32", for texts.
inline const char* storage_name(CacheStorage storage) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "int8"};
  return names[static_cast<int>(storage)];
}

}  // namespace v0
}  // namespace qkv
