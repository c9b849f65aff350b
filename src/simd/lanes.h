// The vector types of float and double at the width of one instruction set, and their lane counts. Everything is in an
// anonymous namespace, so that no two instruction sets can share a copy at link time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "qkv/types.h"

#if defined(__AVX512F__)
#define QKV_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define QKV_VECTOR_BYTES 32
#elif defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS > 0
#define QKV_VECTOR_BYTES (__ARM_FEATURE_SVE_BITS / 8)
#else
#define QKV_VECTOR_BYTES 16
#endif

namespace qkv {
namespace {

typedef float F32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef double F64 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::int32_t I32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::int64_t I64 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::uint32_t U32 __attribute__((vector_size(QKV_VECTOR_BYTES)));
typedef std::uint64_t U64 __attribute__((vector_size(QKV_VECTOR_BYTES)));

/// The vector type of an element type, its integer twin of equal width, and the number of lanes.
template <class T> struct Simd;
template <> struct Simd<float> {
  using V = F32;
  using I = I32;
  using U = U32;
  using Int = std::int32_t;
  static constexpr int kLanes = QKV_VECTOR_BYTES / 4;
};
template <> struct Simd<double> {
  using V = F64;
  using I = I64;
  using U = U64;
  using Int = std::int64_t;
  static constexpr int kLanes = QKV_VECTOR_BYTES / 8;
};

}  // namespace
}  // namespace qkv
