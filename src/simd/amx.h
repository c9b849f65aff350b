// AMX's tile registers: eight squares of 16 rows x 64 bytes, and the one product of bf16 pairs on them. Where
// QKV_AMX_STAND_IN is defined, an exact model written in AVX-512 replaces the instructions: kernels are tested with it
// on a CPU without AMX. It is never part of the library. Intel SDM, LDTILECFG, TILELOADD, TDPBF16PS: round to nearest
// even, denormals in and out are zero, MXCSR is not consulted.
#pragma once

#include "simd/bf16_pairs.h"

#if (defined(__AMX_BF16__) && defined(QKV_BF16_PAIRS)) || defined(QKV_AMX_STAND_IN)
#define QKV_AMX

namespace qkv {
namespace {

constexpr Index kAmxTileRows = 16;
constexpr Index kAmxTilePairs = 16;  // words in a row

#if defined(QKV_AMX_STAND_IN)
inline thread_local std::uint32_t amx_tile_model[8][kAmxTileRows][kAmxTilePairs];

/// All eight tiles at their full size while it exists.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { __builtin_memset(amx_tile_model, 0xFF, sizeof amx_tile_model); }  // NaN: tiles do not outlive this
};

template <int kTile> inline void amx_tile_zero() {
  __builtin_memset(amx_tile_model[kTile], 0, sizeof amx_tile_model[kTile]);
}
template <int kTile> inline void amx_tile_load(const void* rows, Index stride) {
  for (Index r = 0; r < kAmxTileRows; ++r)
    __builtin_memcpy(amx_tile_model[kTile][r], static_cast<const char*>(rows) + r * stride, 64);
}
template <int kTile> inline void amx_tile_store(float* rows, Index stride) {
  for (Index r = 0; r < kAmxTileRows; ++r)
    __builtin_memcpy(reinterpret_cast<char*>(rows) + r * stride, amx_tile_model[kTile][r], 64);
}
template <int kSum, int kA, int kB> inline void amx_tile_add_pairs() {
  for (Index m = 0; m < kAmxTileRows; ++m) {
    F32 lower{}, upper{};
    for (Index k = 0; k < kAmxTilePairs; ++k) {
      const U32 a = U32{} + amx_tile_model[kA][m][k], b = load_u32(amx_tile_model[kB][k]);
      lower = flushed(fma(flushed(as_f32(a << 16)), flushed(as_f32(b << 16)), lower));
      upper = flushed(fma(flushed(as_f32(a & 0xFFFF0000u)), flushed(as_f32(b & 0xFFFF0000u)), upper));
    }
    std::uint32_t* const sum = amx_tile_model[kSum][m];
    store_u32(sum, as_u32(flushed(flushed(as_f32(load_u32(sum))) + flushed(lower + upper))));
  }
}
#else
/// Configures all eight tiles at their full size while it exists; the thread must not configure them otherwise
/// meanwhile.
class AmxTiles {
 public:
  AmxTiles() {
    struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    static_assert(sizeof config == 64);
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }
};

// The compiler knows no tile registers: volatile keeps these in order, and "memory" the numbers that they read and
// write.
template <int kTile> inline void amx_tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(kTile)); }
/// Rows of 64 bytes, `stride` bytes apart.
template <int kTile> inline void amx_tile_load(const void* rows, Index stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile> inline void amx_tile_store(float* rows, Index stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
/// sum[m][n] += sum_k of the pair a[m][k] times the pair b[k][n]: the lower products in one chain over k, the upper
/// ones in another, both from 0; then these two are added, then that to the sum.
template <int kSum, int kA, int kB> inline void amx_tile_add_pairs() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}
#endif

}  // namespace
}  // namespace qkv
#endif
