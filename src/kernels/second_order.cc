// The table of second-order kernels.
#include "kernels/second_order/second_order.h"

#include "kernels/export.h"

namespace qkv {
namespace {

template <class T> constexpr SecondOrderKernels<T> make_second_order_kernels() {
  return {scratch_bytes<SecondOrderScratch<T>>, second_order_rows<T>, second_order_keys<T>};
}

}  // namespace
}  // namespace qkv

QKV_EXPORT(SecondOrderTable, qkv_second_order_kernels) = QKV_UNLESS_FLOAT_ONLY(
    {qkv::make_second_order_kernels<float>(), qkv::make_second_order_kernels<double>()});
