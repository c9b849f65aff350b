// Linear attention compiled once for each instruction set; exports one table and nothing else, as table.cc does.
#include "kernels/export.h"
#include "kernels/linear_backward.h"

namespace qkv {
namespace {

template <class T>
std::size_t linear_forward_scratch_bytes(const LinearSizes& sizes) {
  return LinearScratch<T>(nullptr, sizes).bytes;
}

template <class T>
std::size_t linear_backward_scratch_bytes(const LinearSizes& sizes) {
  return LinearBackwardScratch<T>(nullptr, sizes).bytes;
}

template <class T>
constexpr LinearKernels<T> make_linear_kernels() {
  return {linear_chunk<T>,
          linear_segment_chunks<T>,
          linear_forward_scratch_bytes<T>,
          linear_backward_scratch_bytes<T>,
          linear_forward<T>,
          linear_read_state<T>,
          linear_backward<T>,
          linear_backward_queries<T>,
          linear_backward_keys<T>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(LinearKernelTable, qkv_linear_kernels) = {qkv::make_linear_kernels<float>(), qkv::make_linear_kernels<double>()};
