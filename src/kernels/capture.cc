// The table of kernels that capture weights. A file of its own, so that instances with an observer do not change the code that
// the compiler makes of forward alone (table.cc).
#include "kernels/attention/bf16_forward.h"
#include "kernels/attention/forward.h"
#include "kernels/attention/widened_rows.h"
#include "kernels/capture/params.h"
#include "kernels/capture/row_statistics.h"
#include "kernels/capture/sweep.h"
#include "kernels/export.h"

namespace qkv {
namespace {

/// Calls forward(observer) with an observer of the tile's rows.
template <class S, class Forward>
inline void observe_rows(const ForwardTile<S>& t, const RowSums<S>& sums, void* statistics_scratch, const Forward& forward) {
  using T = Accumulator<S>;
  const RowStatisticsScratch<T> w(statistics_scratch, query_tile<T>(t.scores.head_dim, t.v_head_dim));
  forward(RowStatisticsObserver<S>(sums, w, t.q_begin));
}

}  // namespace
}  // namespace qkv

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

void observed_bf16(const ForwardTile<BFloat16>& t, const RowSums<BFloat16>& sums, void* scratch, void* statistics_scratch) {
  observe_rows(t, sums, statistics_scratch, [&](const auto& observer) { forward_bf16_observed(t, scratch, observer); });
}

}  // namespace
}  // namespace qkv

// Everything else is AVX-512's (dispatch/kernels.cc).
QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = {{}, {}, {nullptr, qkv::observed_bf16, nullptr, nullptr}, {}};
#else
namespace qkv {
namespace {

template <class T>
std::size_t statistics_bytes(Index head_dim, Index v_head_dim) {
  return RowStatisticsScratch<T>(nullptr, query_tile<T>(head_dim, v_head_dim)).bytes;
}

template <class T>
void observed_forward(const ForwardTile<T>& t, const RowSums<T>& sums, void* scratch, void* statistics_scratch) {
  observe_rows(t, sums, statistics_scratch, [&](const auto& observer) {
    forward_tile(t, ForwardScratch<T>(scratch, t.scores.head_dim, t.v_head_dim), OwnRows{}, observer);
  });
}

template <class S>
void observed_widened(const ForwardTile<S>& t, const RowSums<S>& sums, void* scratch, void* statistics_scratch) {
  observe_rows(t, sums, statistics_scratch, [&](const auto& observer) { forward_widened_observed(t, scratch, observer); });
}

/// The tile of a sweep as forward_tile's Rows expect it.
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
  return scratch_bytes<ForwardScratch<T>>(head_dim, v_head_dim) + scratch_bytes<SweepScratch<T>>(head_dim, v_head_dim);
}

template <class T>
void sweep(const CaptureSweep<T>& t, void* scratch) {
  const ForwardScratch<T> w(scratch, t.scores.head_dim, t.v_head_dim);
  const SweepScratch<T> own(static_cast<std::byte*>(scratch) + w.bytes, t.scores.head_dim, t.v_head_dim);
  sweep_tile(t, tile_of(t), w, own, OwnRows{},
             [&](const StripRange& r, T* panel) { pack_strips(t.dout, t.dout_stride, r.i0, r.ni, t.v_head_dim, T{1}, panel); });
}

std::size_t widened_sweep_bytes(Index head_dim, Index v_head_dim) {
  return scratch_bytes<WidenedForwardScratch>(head_dim, v_head_dim) + scratch_bytes<SweepScratch<float>>(head_dim, v_head_dim);
}

template <class S>
void sweep_widened(const CaptureSweep<S>& t, void* scratch) {
  const WidenedForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  const SweepScratch<float> own(static_cast<std::byte*>(scratch) + w.bytes, t.scores.head_dim, t.v_head_dim);
  const ForwardTile<S> tile = tile_of(t);
  sweep_tile(t, float_forward(tile), w.tile, own, WidenedRows<S>(tile, w), [&](const StripRange& r, float* panel) {
    const float* rows = widened(t.dout, t.dout_stride, r.i0, r.ni, t.v_head_dim, w.rows);
    pack_strips(rows, t.v_head_dim, r.i0, r.ni, t.v_head_dim, 1.0f, panel);
  });
}

template <class T>
constexpr CaptureKernels<T> make_kernels() {
  return {statistics_bytes<T>, observed_forward<T>, sweep_bytes<T>, sweep<T>};
}

template <class S>
constexpr CaptureKernels<S> make_widened_kernels() {
  return {statistics_bytes<float>, observed_widened<S>, widened_sweep_bytes, sweep_widened<S>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = {qkv::make_kernels<float>(), qkv::make_kernels<double>(),
                                                       qkv::make_widened_kernels<qkv::BFloat16>(),
                                                       qkv::make_widened_kernels<qkv::Float16>()};
#endif
