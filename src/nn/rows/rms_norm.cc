#include "nn/rows/rms_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nn/rows/row_blocks.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {
namespace {

double inverse_root_mean_square(const float* x, Index width, double eps) {
  double squares = 0;
  for (Index d = 0; d < width; ++d) squares += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return 1 / std::sqrt(squares / static_cast<double>(width) + eps);
}

/// Row `number` of [B, H, T, D], heads fastest: they are adjacent in memory.
template <class T>
T* row_of(View<T, 4> x, Index number) {
  const Index h = number % x.size(1), token = number / x.size(1);
  return &x(token / x.size(2), h, token % x.size(2), 0);
}

RowBlocks blocks_of(const View<const float, 4>& x) { return {x.size(0) * x.size(1) * x.size(2), x.size(3)}; }

}  // namespace

void rms_norm_forward(View<const float, 4> x, const float* weight, double eps, View<float, 4> y, Context& context) {
  const Index width = x.size(3);
  for_row_blocks(context, blocks_of(x), [&](Index begin, Index end, Index) {
    for (Index number = begin; number < end; ++number) {
      const float* from = row_of(x, number);
      float* to = row_of(y, number);
      const double inverse = inverse_root_mean_square(from, width, eps);
      for (Index d = 0; d < width; ++d) to[d] = static_cast<float>(static_cast<double>(from[d]) * inverse) * weight[d];
    }
  });
}

// With n = x * inverse and g = dy * weight:  dx = inverse * (g - n * mean(g * n)).
void rms_norm_backward(View<const float, 4> x, View<const float, 4> dy, const float* weight, double eps, View<float, 4> dx,
                       float* dweight, Tensor<float>& partial_sums, Context& context) {
  const Index width = x.size(3);
  const RowBlocks blocks = blocks_of(x);
  resize(partial_sums, std::array{blocks.count(), width});
  std::ranges::fill(partial_sums.span(), 0.0F);
  for_row_blocks(context, blocks, [&](Index begin, Index end, Index block) {
    float* sums = partial_sums.data() + block * width;
    for (Index number = begin; number < end; ++number) {
      const float* from = row_of(x, number);
      const float* gradient = row_of(dy, number);
      float* to = row_of(dx, number);
      const double inverse = inverse_root_mean_square(from, width, eps);
      double mean = 0;
      for (Index d = 0; d < width; ++d) {
        const double normal = static_cast<double>(from[d]) * inverse;
        mean += static_cast<double>(gradient[d]) * static_cast<double>(weight[d]) * normal;
        sums[d] += gradient[d] * static_cast<float>(normal);
      }
      mean /= static_cast<double>(width);
      for (Index d = 0; d < width; ++d) {
        const double normal = static_cast<double>(from[d]) * inverse;
        to[d] =
            static_cast<float>(inverse * (static_cast<double>(gradient[d]) * static_cast<double>(weight[d]) - normal * mean));
      }
    }
  });
  for (Index block = 0; block < blocks.count(); ++block) {
    for (Index d = 0; d < width; ++d) dweight[d] += partial_sums.data()[block * width + d];
  }
}

}  // namespace qkv::inline v0::nn
