// The kernels that look at weights, compiled once for each instruction set as table.cc is; exports one table and nothing else.
// Apart from table.cc, so that forward's own instructions are those of nobody who looks.
#include "kernels/bf16.h"
#include "kernels/capture_params.h"
#include "kernels/export.h"
#include "kernels/forward.h"
#include "kernels/half.h"
#include "kernels/sweep.h"
#include "kernels/watch.h"

namespace qkv {
namespace {

/// forward(tile, watch) with a watch of the tile's rows.
template <class S, class Forward>
inline void watch_rows(const ForwardTile<S>& t, const RowSums<S>& sums, void* watch_scratch, const Forward& forward) {
  using T = Accumulator<S>;
  const WatchScratch<T> w(watch_scratch, query_tile<T>(t.scores.head_dim, t.v_head_dim));
  forward(RowWatch<S>(sums, w, t.q_begin));
}

}  // namespace
}  // namespace qkv

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

void watched_bf16(const ForwardTile<BFloat16>& t, const RowSums<BFloat16>& sums, void* scratch, void* watch_scratch) {
  watch_rows(t, sums, watch_scratch, [&](const auto& watch) { forward_bf16_watched(t, scratch, watch); });
}

}  // namespace
}  // namespace qkv

// The rest is AVX-512's (dispatch/capture_kernels.cc).
QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = {{}, {}, {nullptr, qkv::watched_bf16, nullptr, nullptr}, {}};
#else
namespace qkv {
namespace {

template <class T>
std::size_t watch_bytes(Index head_dim, Index v_head_dim) {
  return WatchScratch<T>(nullptr, query_tile<T>(head_dim, v_head_dim)).bytes;
}

template <class T>
void watched_forward(const ForwardTile<T>& t, const RowSums<T>& sums, void* scratch, void* watch_scratch) {
  watch_rows(t, sums, watch_scratch, [&](const auto& watch) {
    forward_tile(t, ForwardScratch<T>(scratch, t.scores.head_dim, t.v_head_dim), OwnRows{}, watch);
  });
}

template <class S>
void watched_half(const ForwardTile<S>& t, const RowSums<S>& sums, void* scratch, void* watch_scratch) {
  watch_rows(t, sums, watch_scratch, [&](const auto& watch) { forward_half_watched(t, scratch, watch); });
}

/// The tile of a sweep as forward_tile's rows know it.
template <class S>
ForwardTile<S> tile_of(const CaptureSweep<S>& t) {
  ForwardTile<S> f{};
  f.scores = t.scores;
  f.q_begin = t.q_begin;
  f.q_count = t.q_count;
  f.v = t.v;
  f.v_stride = t.v_stride;
  f.v_head_dim = t.v_head_dim;
  return f;
}

template <class T>
std::size_t sweep_bytes(Index head_dim, Index v_head_dim) {
  return ForwardScratch<T>(nullptr, head_dim, v_head_dim).bytes + SweepScratch<T>(nullptr, head_dim, v_head_dim).bytes;
}

template <class T>
void sweep(const CaptureSweep<T>& t, void* scratch) {
  const ForwardScratch<T> w(scratch, t.scores.head_dim, t.v_head_dim);
  const SweepScratch<T> own(static_cast<std::byte*>(scratch) + w.bytes, t.scores.head_dim, t.v_head_dim);
  sweep_tile(t, tile_of(t), w, own, OwnRows{},
             [&](const StripRows& r, T* panel) { pack_strips(t.dout, t.dout_stride, r.i0, r.ni, t.v_head_dim, T{1}, panel); });
}

std::size_t half_sweep_bytes(Index head_dim, Index v_head_dim) {
  return HalfForwardScratch(nullptr, head_dim, v_head_dim).bytes + SweepScratch<float>(nullptr, head_dim, v_head_dim).bytes;
}

template <class S>
void sweep_half(const CaptureSweep<S>& t, void* scratch) {
  const HalfForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  const SweepScratch<float> own(static_cast<std::byte*>(scratch) + w.bytes, t.scores.head_dim, t.v_head_dim);
  const ForwardTile<S> tile = tile_of(t);
  sweep_tile(t, float_forward(tile), w.tile, own, HalfRows<S>(tile, w), [&](const StripRows& r, float* panel) {
    const float* rows = widened(t.dout, t.dout_stride, r.i0, r.ni, t.v_head_dim, w.rows);
    pack_strips(rows, t.v_head_dim, r.i0, r.ni, t.v_head_dim, 1.0f, panel);
  });
}

template <class T>
constexpr CaptureKernels<T> make_kernels() {
  return {watch_bytes<T>, watched_forward<T>, sweep_bytes<T>, sweep<T>};
}

template <class S>
constexpr CaptureKernels<S> make_half_kernels() {
  return {watch_bytes<float>, watched_half<S>, half_sweep_bytes, sweep_half<S>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = {qkv::make_kernels<float>(), qkv::make_kernels<double>(),
                                                       qkv::make_half_kernels<qkv::BFloat16>(),
                                                       qkv::make_half_kernels<qkv::Float16>()};
#endif
