#include "nn/rows/norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nn/rows/row_blocks.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {
namespace {

double wide(float x) { return static_cast<double>(x); }
double wide(BFloat16 x) { return static_cast<double>(static_cast<float>(x)); }

struct Moments {
  double mean = 0;
  double inverse_deviation = 0;  // 1 / sqrt(variance + eps)
};

template <class T> Moments moments(const T* x, Index width, const NormWeights& norm) {
  double sum = 0, squares = 0;
  if (norm.centred) {
    for (Index d = 0; d < width; ++d) sum += wide(x[d]);
  }
  const double mean = sum / static_cast<double>(width);
  for (Index d = 0; d < width; ++d) squares += (wide(x[d]) - mean) * (wide(x[d]) - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(width) + norm.eps)};
}

/// Row `number` of [B, H, T, D], heads fastest: they are adjacent in memory.
template <class T> T* row_of(View<T, 4> x, Index number) {
  const Index h = number % x.size(1), token = number / x.size(1);
  return &x(token / x.size(2), h, token % x.size(2), 0);
}

template <class T> RowBlocks blocks_of(const View<T, 4>& x) { return {x.size(0) * x.size(1) * x.size(2), x.size(3)}; }

}  // namespace

template <class T> void norm_forward(View<const T, 4> x, const NormWeights& norm, View<T, 4> y, Context& context) {
  const Index width = x.size(3);
  for_row_blocks(context, blocks_of(x), [&](Index begin, Index end, Index) {
    for (Index number = begin; number < end; ++number) {
      const T* from = row_of(x, number);
      T* to = row_of(y, number);
      const auto [mean, inverse] = moments(from, width, norm);
      for (Index d = 0; d < width; ++d) {
        const float scaled = static_cast<float>((wide(from[d]) - mean) * inverse) * norm.weight[d];
        to[d] = static_cast<T>(norm.centred ? scaled + (norm.bias != nullptr ? norm.bias[d] : 0.0F) : scaled);
      }
    }
  });
}

// With n = (x - mean) * inverse and g = dy * weight:  dx = inverse * (g - mean(g) - n * mean(g * n)); without a mean
// of x that of g is 0 too.
template <class T> void norm_backward(View<const T, 4> x, View<const T, 4> dy, const NormWeights& norm, View<T, 4> dx,
    float* dweight, float* dbias, Tensor<float>& partial_sums, Context& context) {
  const Index width = x.size(3), kinds = dbias != nullptr ? 2 : 1;
  RowBlocks blocks = blocks_of(x);
  blocks.block = std::max(blocks.block, std::min<Index>(64, blocks.rows / 64));  // partial sums are far less than x
  resize(partial_sums, std::array{blocks.count(), kinds, width});
  std::ranges::fill(partial_sums.span(), 0.0F);
  for_row_blocks(context, blocks, [&](Index begin, Index end, Index block) {
    float* const sums = partial_sums.data() + block * kinds * width;
    for (Index number = begin; number < end; ++number) {
      const T* from = row_of(x, number);
      const T* gradient = row_of(dy, number);
      T* to = row_of(dx, number);
      const auto [mean, inverse] = moments(from, width, norm);
      double mean_g = 0, mean_gn = 0;
      for (Index d = 0; d < width; ++d) {
        const double normal = (wide(from[d]) - mean) * inverse, g = wide(gradient[d]) * wide(norm.weight[d]);
        mean_g += g;
        mean_gn += g * normal;
        sums[d] += static_cast<float>(gradient[d]) * static_cast<float>(normal);
        if (dbias != nullptr) sums[width + d] += static_cast<float>(gradient[d]);
      }
      mean_g = norm.centred ? mean_g / static_cast<double>(width) : 0;
      mean_gn /= static_cast<double>(width);
      for (Index d = 0; d < width; ++d) {
        const double normal = (wide(from[d]) - mean) * inverse, g = wide(gradient[d]) * wide(norm.weight[d]);
        to[d] = static_cast<T>(static_cast<float>(inverse * (g - mean_g - normal * mean_gn)));
      }
    }
  });
  // In double: in one chain of floats 10^5 tokens lose digits.
  for_row_blocks(context, {kinds * width, blocks.count()}, [&](Index begin, Index end, Index) {
    for (Index n = begin; n < end; ++n) {
      double sum = 0;
      for (Index block = 0; block < blocks.count(); ++block) {
        sum += wide(partial_sums.data()[block * kinds * width + n]);
      }
      (n < width ? dweight[n] : dbias[n - width]) += static_cast<float>(sum);
    }
  });
}

#define QKV_INSTANTIATE(T)                                                                \
  template void norm_forward(View<const T, 4>, const NormWeights&, View<T, 4>, Context&); \
  template void norm_backward(                                                            \
      View<const T, 4>, View<const T, 4>, const NormWeights&, View<T, 4>, float*, float*, Tensor<float>&, Context&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(BFloat16)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0::nn
