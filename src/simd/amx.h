// AMX's tile registers: eight squares of 16 rows x 64 bytes, and the one product of bf16 pairs on them. Where QKV_AMX_STAND_IN
// is defined, an exact model in AVX-512 words takes the place of the instructions: it is how kernels built on them are tested
// on a CPU without them, never part of the library. Intel SDM, LDTILECFG, TILELOADD, TDPBF16PS: round to nearest even,
// denormals in and out are zero, MXCSR is not consulted.
// Not: whether the CPU has them and the operating system grants them (dispatch/cpu.cc).
#pragma once

#include "simd/bf16_pairs.h"

#if (defined(__AMX_BF16__) && defined(QKV_BF16_PAIRS)) || defined(QKV_AMX_STAND_IN)
#define QKV_TILES

namespace qkv {
namespace {

constexpr Index kTileRows = 16;
constexpr Index kTilePairs = 16;  // words in a row

#if defined(QKV_AMX_STAND_IN)
inline thread_local std::uint32_t tile_model[8][kTileRows][kTilePairs];

/// All eight tiles at their full size, as long as it lives.
class TileRegisters {
 public:
  TileRegisters() = default;
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { __builtin_memset(tile_model, 0xFF, sizeof tile_model); }  // NaN: nothing may be left to rely on
};

template <int kTile>
inline void tile_zero() {
  __builtin_memset(tile_model[kTile], 0, sizeof tile_model[kTile]);
}
template <int kTile>
inline void tile_load(const void* rows, Index stride) {
  for (Index r = 0; r < kTileRows; ++r) __builtin_memcpy(tile_model[kTile][r], static_cast<const char*>(rows) + r * stride, 64);
}
template <int kTile>
inline void tile_store(float* rows, Index stride) {
  for (Index r = 0; r < kTileRows; ++r) __builtin_memcpy(reinterpret_cast<char*>(rows) + r * stride, tile_model[kTile][r], 64);
}
template <int kSum, int kA, int kB>
inline void tile_add_pairs() {
  for (Index m = 0; m < kTileRows; ++m) {
    F32 lower{}, upper{};
    for (Index k = 0; k < kTilePairs; ++k) {
      const U32 a = U32{} + tile_model[kA][m][k], b = load_u32(tile_model[kB][k]);
      lower = flushed(fma(flushed(as_f32(a << 16)), flushed(as_f32(b << 16)), lower));
      upper = flushed(fma(flushed(as_f32(a & 0xFFFF0000u)), flushed(as_f32(b & 0xFFFF0000u)), upper));
    }
    std::uint32_t* const sum = tile_model[kSum][m];
    store_u32(sum, as_u32(flushed(flushed(as_f32(load_u32(sum))) + flushed(lower + upper))));
  }
}
#else
/// All eight tiles at their full size, as long as it lives; the calling thread's tiles are configured by nobody else meanwhile.
class TileRegisters {
 public:
  TileRegisters() {
    struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    static_assert(sizeof config == 64);
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }
};

// The compiler knows no tile registers: volatile keeps these in order, and "memory" the numbers that they read and write.
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
/// Rows of 64 bytes, `stride` bytes apart.
template <int kTile>
inline void tile_load(const void* rows, Index stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(float* rows, Index stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
/// sum[m][n] += sum_k of the pair a[m][k] times the pair b[k][n]: the lower products in one chain over k, the upper ones in
/// another, both from 0; then these two are added, then that to the sum.
template <int kSum, int kA, int kB>
inline void tile_add_pairs() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}
#endif

}  // namespace
}  // namespace qkv
#endif
