// The table of linear attention's kernels.
#include "kernels/export.h"
#include "kernels/linear_attention/channels_backward.h"
#include "kernels/linear_attention/selective_scan.h"
#include "kernels/linear_attention/short_convolution.h"
#include "kernels/linear_attention/step.h"

namespace qkv {
namespace {

template <class T> std::size_t linear_attention_forward_scratch_bytes(const LinearAttentionSizes& sizes) {
  return LinearAttentionScratch<T>(nullptr, sizes).bytes;
}

template <class T> std::size_t linear_attention_backward_scratch_bytes(const LinearAttentionSizes& sizes) {
  return LinearAttentionBackwardScratch<T>(nullptr, sizes).bytes;
}

template <class T, int kV> constexpr ScanKernels<T> make_scan_kernels() {
  return {kScanBlock<T, kV>, pack_transposed<T>, scan_backward_scratch_bytes<T, kV>, selective_scan<T, kV>,
      selective_scan_backward<T, kV>, convolve<T>, convolve_backward<T>};
}

template <class T> constexpr LinearAttentionKernels<T> make_linear_attention_kernels() {
  return {linear_attention_segment_chunks<T>, linear_attention_forward_scratch_bytes<T>,
      linear_attention_backward_scratch_bytes<T>, linear_attention_forward<T>, linear_attention_step<T>,
      linear_attention_turn<T>, linear_attention_read_state<T>, linear_attention_backward<T>,
      linear_attention_backward_queries<T>, linear_attention_backward_keys<T>, make_scan_kernels<T, kScanVectors>(),
      make_scan_kernels<T, kWideScanVectors>()};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(LinearAttentionTable, qkv_linear_attention_kernels) = QKV_UNLESS_FLOAT_ONLY(
    {qkv::make_linear_attention_kernels<float>(), qkv::make_linear_attention_kernels<double>()});
