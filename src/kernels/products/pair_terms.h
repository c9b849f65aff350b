// Operands of every product of bf16 pairs, on vectors (bf16_terms.h) or on tiles (amx_terms.h): of A two numbers where
// they lie beside each other, of B one 32-bit word.
#pragma once

#include "kernels/products/gemm.h"
#include "simd/bf16_pairs.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct PairTerms {
  using A = BFloat16;
  using B = std::uint32_t;
  using Sum = float;
  static constexpr Index kNumbers = 2;
  static U32 splat_a(const BFloat16* a) { return splat_pair(a); }
  static U32 splat_last(const BFloat16* a) { return splat_lower(a); }
  static U32 load_b(const std::uint32_t* b) { return load_u32(b); }
  static U32 load_b_tail(const std::uint32_t* b, int n) { return load_u32_tail(b, n); }
  static U32 keep(U32 b, bool lower, bool upper) { return b & ((lower ? 0xFFFFu : 0u) | (upper ? 0xFFFF0000u : 0u)); }
};

}  // namespace
}  // namespace qkv
#endif
