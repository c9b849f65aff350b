// The table of linear attention's kernels.
#include "kernels/export.h"
#include "kernels/linear_attention/channels_backward.h"
#include "kernels/linear_attention/step.h"

namespace qkv {
namespace {

template <class T> std::size_t linear_attention_forward_scratch_bytes(const LinearAttentionSizes& sizes) {
  return LinearAttentionScratch<T>(nullptr, sizes).bytes;
}

template <class T> std::size_t linear_attention_backward_scratch_bytes(const LinearAttentionSizes& sizes) {
  return LinearAttentionBackwardScratch<T>(nullptr, sizes).bytes;
}

template <class T> constexpr LinearAttentionKernels<T> make_linear_attention_kernels() {
  return {linear_attention_segment_chunks<T>, linear_attention_forward_scratch_bytes<T>,
      linear_attention_backward_scratch_bytes<T>, linear_attention_forward<T>, linear_attention_step<T>,
      linear_attention_turn<T>, linear_attention_read_state<T>, linear_attention_backward<T>,
      linear_attention_backward_queries<T>, linear_attention_backward_keys<T>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(LinearAttentionTable, qkv_linear_attention_kernels) = {
    qkv::make_linear_attention_kernels<float>(), qkv::make_linear_attention_kernels<double>()};
