// The table of kernels that capture weights. A file of its own, so that instances with an observer do not change the
// code that the compiler makes of forward alone (table.cc).
#include "kernels/attention/bf16_forward.h"
#include "kernels/attention/forward.h"
#include "kernels/capture/params.h"
#include "kernels/capture/row_statistics.h"
#include "kernels/capture/sweep.h"
#include "kernels/export.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

void observed_bf16(const ForwardTile<float>& t, const RowSums<float>& sums, void* scratch, void* statistics_scratch) {
  const RowStatisticsScratch<float> w(statistics_scratch);
  forward_bf16_observed(t, scratch, RowStatisticsObserver<float>(sums, w));
}

}  // namespace
}  // namespace qkv

// Everything else is AVX-512's (dispatch/kernels.cc).
QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = {{nullptr, nullptr, qkv::observed_bf16, nullptr, nullptr}, {}};
#else
namespace qkv {
namespace {

template <class T> std::size_t statistics_bytes() { return RowStatisticsScratch<T>(nullptr).bytes; }

template <class T>
void observed_forward(const ForwardTile<T>& t, const RowSums<T>& sums, void* scratch, void* statistics_scratch) {
  const RowStatisticsScratch<T> of_rows(statistics_scratch);
  const ForwardScratch<T> w(scratch, t.scores.head_dim, t.v_head_dim, t.q_count, copies_rows(t));
  PagedRows<T> rows(t, w);
  forward_tile(t, w, rows, RowStatisticsObserver<T>(sums, of_rows));
}

template <class T> std::size_t sweep_bytes(Index head_dim, Index v_head_dim, Index queries, bool copies) {
  return forward_scratch_bytes<T>(head_dim, v_head_dim, queries, copies) +
         SweepScratch<T>(nullptr, head_dim, v_head_dim, queries).bytes;
}

template <class T> constexpr CaptureKernels<T> make_kernels() {
  return {statistics_bytes<T>, observed_forward<T>, nullptr, sweep_bytes<T>, sweep_tile<T>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(CaptureKernelTable, qkv_capture_kernels) = QKV_UNLESS_FLOAT_ONLY(
    {qkv::make_kernels<float>(), qkv::make_kernels<double>()});
#endif
