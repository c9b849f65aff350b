// The table of second order, compiled once for each instruction set as table.cc is: qkv_second_kernels_scalar and so on.
#include "kernels/second.h"

#include "kernels/export.h"

namespace qkv {
namespace {

template <class T>
std::size_t second_scratch_bytes(Index head_dim, Index v_head_dim) {
  return SecondScratch<T>(nullptr, head_dim, v_head_dim).bytes;
}

template <class T>
constexpr SecondKernels<T> make_second_kernels() {
  return {second_scratch_bytes<T>, second_rows<T>, second_keys<T>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(SecondKernelTable, qkv_second_kernels) = {qkv::make_second_kernels<float>(), qkv::make_second_kernels<double>()};
