#include "nn/rows/rms_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nn/rows/row_blocks.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {
namespace {

double wide(float x) { return static_cast<double>(x); }
double wide(BFloat16 x) { return static_cast<double>(static_cast<float>(x)); }

template <class T> double inverse_root_mean_square(const T* x, Index width, double eps) {
  double squares = 0;
  for (Index d = 0; d < width; ++d) squares += wide(x[d]) * wide(x[d]);
  return 1 / std::sqrt(squares / static_cast<double>(width) + eps);
}

/// Row `number` of [B, H, T, D], heads fastest: they are adjacent in memory.
template <class T> T* row_of(View<T, 4> x, Index number) {
  const Index h = number % x.size(1), token = number / x.size(1);
  return &x(token / x.size(2), h, token % x.size(2), 0);
}

template <class T> RowBlocks blocks_of(const View<T, 4>& x) { return {x.size(0) * x.size(1) * x.size(2), x.size(3)}; }

}  // namespace

template <class T>
void rms_norm_forward(View<const T, 4> x, const float* weight, double eps, View<T, 4> y, Context& context) {
  const Index width = x.size(3);
  for_row_blocks(context, blocks_of(x), [&](Index begin, Index end, Index) {
    for (Index number = begin; number < end; ++number) {
      const T* from = row_of(x, number);
      T* to = row_of(y, number);
      const double inverse = inverse_root_mean_square(from, width, eps);
      for (Index d = 0; d < width; ++d) to[d] = static_cast<T>(static_cast<float>(wide(from[d]) * inverse) * weight[d]);
    }
  });
}

// With n = x * inverse and g = dy * weight:  dx = inverse * (g - n * mean(g * n)).
template <class T> void rms_norm_backward(View<const T, 4> x, View<const T, 4> dy, const float* weight, double eps,
    View<T, 4> dx, float* dweight, Tensor<float>& partial_sums, Context& context) {
  const Index width = x.size(3);
  const RowBlocks blocks = blocks_of(x);
  resize(partial_sums, std::array{blocks.count(), width});
  std::ranges::fill(partial_sums.span(), 0.0F);
  for_row_blocks(context, blocks, [&](Index begin, Index end, Index block) {
    float* sums = partial_sums.data() + block * width;
    for (Index number = begin; number < end; ++number) {
      const T* from = row_of(x, number);
      const T* gradient = row_of(dy, number);
      T* to = row_of(dx, number);
      const double inverse = inverse_root_mean_square(from, width, eps);
      double mean = 0;
      for (Index d = 0; d < width; ++d) {
        const double normal = wide(from[d]) * inverse;
        mean += wide(gradient[d]) * static_cast<double>(weight[d]) * normal;
        sums[d] += static_cast<float>(gradient[d]) * static_cast<float>(normal);
      }
      mean /= static_cast<double>(width);
      for (Index d = 0; d < width; ++d) {
        const double normal = wide(from[d]) * inverse;
        to[d] = static_cast<T>(
            static_cast<float>(inverse * (wide(gradient[d]) * static_cast<double>(weight[d]) - normal * mean)));
      }
    }
  });
  for (Index block = 0; block < blocks.count(); ++block) {
    for (Index d = 0; d < width; ++d) dweight[d] += partial_sums.data()[block * width + d];
  }
}

#define QKV_INSTANTIATE(T)                                                                      \
  template void rms_norm_forward(View<const T, 4>, const float*, double, View<T, 4>, Context&); \
  template void rms_norm_backward(                                                              \
      View<const T, 4>, View<const T, 4>, const float*, double, View<T, 4>, float*, Tensor<float>&, Context&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(BFloat16)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0::nn
