// The table of attention's kernels, with those of layers and of the measured peak. Compiled once per instruction set,
// as every .cc here (src/CMakeLists.txt).
#include "kernels/attention/backward.h"
#include "kernels/attention/bf16_backward.h"
#include "kernels/attention/bf16_forward.h"
#include "kernels/attention/forward.h"
#include "kernels/attention/scratch.h"
#include "kernels/export.h"
#include "kernels/layers/activations.h"
#include "kernels/layers/bf16_product.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/embedding_rows.h"
#include "kernels/layers/matrix_product.h"
#include "kernels/params.h"
#include "kernels/read_peak.h"

namespace qkv {
namespace {

/// Independent chains of `add`, enough to fill two FMA ports at a latency of 4 or 5 cycles, each of `flops` a lane.
template <class T, class Add>
inline __attribute__((always_inline)) double peak_of_chains(Index rounds, T* sink, double flops, const Add& add) {
  using V = typename Simd<T>::V;
  constexpr int chains = 12;
  V acc[chains];
#pragma GCC unroll 12
  for (int c = 0; c < chains; ++c) acc[c] = splat<T>(static_cast<T>(c));  // different, or the compiler would merge them
  for (Index r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < chains; ++c) acc[c] = add(acc[c]);  // accumulates, as products do; NEON has no other form
  }
  V sum{};
#pragma GCC unroll 12
  for (int c = 0; c < chains; ++c) sum += acc[c];
  store<T>(sink, sum);
  return flops * chains * Simd<T>::kLanes * static_cast<double>(rounds);
}

template <class T> double fma_peak(Index rounds, T* sink) {
  using V = typename Simd<T>::V;
  const V a = splat<T>(static_cast<T>(0.999)), b = splat<T>(static_cast<T>(0.001));
  return peak_of_chains(
      rounds, sink, 2, [&](V sum) __attribute__((always_inline)) { return fma(a, b, sum); });
}

#if defined(QKV_AMX)
/// The same on AMX tiles: four sums of two tiles of each operand, as products do.
double dot_peak(Index rounds, float* sink) {
  alignas(64) std::uint32_t pairs[kAmxTileRows][kAmxTilePairs];
  for (auto& row : pairs) {
    for (std::uint32_t& pair : row) pair = 0x3A833A83u;  // 0.001 twice
  }
  const AmxTiles registers;
  unrolled<4>([](auto sum) { amx_tile_zero<sum>(); });
  unrolled<4>([&](auto operand) { amx_tile_load<4 + operand>(pairs, sizeof pairs[0]); });
  for (Index r = 0; r < rounds; ++r) unrolled<4>([](auto sum) { amx_tile_add_pairs<sum, 4 + sum / 2, 6 + sum % 2>(); });
  alignas(64) float sums[kAmxTileRows][kAmxTilePairs];
  F32 total{};
  unrolled<4>([&](auto sum) {
    amx_tile_store<sum>(sums[0], sizeof sums[0]);
    total += load<float>(sums[0]);
  });
  store<float>(sink, total);
  return 4.0 * 4 * kAmxTileRows * kAmxTilePairs * kAmxTilePairs * static_cast<double>(rounds);
}
#elif defined(QKV_BF16_PAIRS)
/// The same on products of bf16 pairs.
double dot_peak(Index rounds, float* sink) {
  const U32 a = U32{} + 0x3F7F3F7Fu, b = U32{} + 0x3A833A83u;  // pairs of 0.996 and of 0.001
  return peak_of_chains(
      rounds, sink, 4, [&](F32 sum) __attribute__((always_inline)) { return add_pairs(sum, a, b); });
}
#endif

}  // namespace
}  // namespace qkv

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

std::size_t bf16_backward_scratch_bytes(Index head_dim, Index v_head_dim, bool copies) {
  const std::size_t own = backward_scratch_bytes<BackwardScratch<float>>(head_dim, v_head_dim, copies);
  return copies ? larger(own, backward_scratch_bytes<Bf16BackwardScratch>(head_dim, v_head_dim)) : own;
}

/// The kernels that multiply pairs. The others of this instruction set are AVX-512's (dispatch/kernels.cc).
constexpr Kernels<float> make_pair_kernels() {
  Kernels<float> kernels{};
  kernels.forward_scratch_bytes = bf16_forward_scratch_bytes;
  kernels.backward_scratch_bytes = bf16_backward_scratch_bytes;
  kernels.forward_pairs = forward_bf16;
  kernels.backward_pairs = backward_bf16;
  kernels.delta_pairs = delta_rows_bf16;
  return kernels;
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(KernelTable, qkv_kernels) = {qkv::make_pair_kernels(), {},
    {{}, {qkv::bf16_product_scratch, qkv::bf16_product}, {}, {}, {}, {}, {}},
    {nullptr, nullptr, qkv::dot_peak, nullptr}};
#else
namespace qkv {
namespace {

template <class T> constexpr Kernels<T> make_kernels() {
  Kernels<T> kernels{strip_lanes<T>(), key_tile<T>, query_tile_of<T>, sum_queries_of<T>, copied_query_tile<T>,
      backward_keys<T>, forward_scratch_bytes<T>, backward_scratch_bytes<BackwardScratch<T>>, forward<T>, backward<T>,
      delta_rows<T>, nullptr, nullptr, nullptr, nullptr};
  if constexpr (std::is_same_v<T, float>) kernels.round = round_rows;
  return kernels;
}

constexpr LayerKernels make_layer_kernels() {
  return {{matrix_product_scratch, matrix_product}, {}, gather_rows, scatter_rows, cross_entropy, activate<Gelu>,
      activate<Silu>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(KernelTable, qkv_kernels) = {qkv::make_kernels<float>(), QKV_UNLESS_FLOAT_ONLY(qkv::make_kernels<double>()),
    qkv::make_layer_kernels(),
    QKV_UNLESS_FLOAT_ONLY({qkv::fma_peak<float>, qkv::fma_peak<double>, nullptr, qkv::kReadLoops})};
#endif
