#include "qkv/nn/layer_norm.h"

#include <cmath>

#include "core/check.h"
#include "nn/parameters/parameters.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

struct Moments {
  double mean = 0;
  double inverse_deviation = 0;  // 1 / sqrt(variance + eps)
};

Moments moments(const float* x, Index width, double eps) {
  double sum = 0;
  for (Index e = 0; e < width; ++e) sum += static_cast<double>(x[e]);
  const double mean = sum / static_cast<double>(width);
  double squares = 0;
  for (Index e = 0; e < width; ++e) squares += (static_cast<double>(x[e]) - mean) * (static_cast<double>(x[e]) - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(width) + eps)};
}

}  // namespace

LayerNorm::LayerNorm(const LayerNormOptions& options) : eps_(options.eps) {
  check<ShapeError>(options.embed_dim > 0, "LayerNorm", "embed_dim must be at least 1: got ", options.embed_dim);
  check<OptionError>(
      options.eps > 0 && std::isfinite(options.eps), "LayerNorm", "eps must be a number above 0: got ", options.eps);
  weight_ = Tensor<float>({options.embed_dim});
  weight_gradient_ = Tensor<float>(weight_.sizes());
  std::ranges::fill(weight_.span(), 1.0F);
  if (!options.bias) return;
  bias_ = Tensor<float>(weight_.sizes());
  bias_gradient_ = Tensor<float>(weight_.sizes());
}

void LayerNorm::forward(View<const float, 2> x, View<float, 2> y, Context& context) const {
  const Index width = weight_.count();
  check<ShapeError>(x.size(1) == width && y.sizes() == x.sizes(), "LayerNorm::forward", "x and y must be [M, ", width,
      "]: got ", x, " and ", y);
  check_rows("LayerNorm::forward", "x", x, "y", y);
  for_row_blocks(context, {x.size(0), width}, [&](Index begin, Index end, Index) {
    for (Index m = begin; m < end; ++m) {
      const float* from = x.data() + m * x.stride(0);
      float* to = y.data() + m * y.stride(0);
      const auto [mean, inverse] = moments(from, width, eps_);
      for (Index e = 0; e < width; ++e) {
        const double normal = (static_cast<double>(from[e]) - mean) * inverse;
        to[e] = static_cast<float>(normal) * weight_.data()[e] + (bias_.count() != 0 ? bias_.data()[e] : 0.0F);
      }
    }
  });
}

// With n = (x - mean) * inverse and g = dy * weight:  dx = inverse * (g - mean(g) - n * mean(g * n)).
void LayerNorm::backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context) {
  const Index width = weight_.count();
  check<ShapeError>(x.size(1) == width && dy.sizes() == x.sizes() && dx.sizes() == x.sizes(), "LayerNorm::backward",
      "x, dy and dx must be [M, ", width, "]: got ", x, ", ", dy, " and ", dx);
  check_rows("LayerNorm::backward", "x", x, "dy", dy, "dx", dx);
  const RowBlocks blocks(x.size(0), width);
  resize(partial_sums_, {blocks.count(), 2, width});
  std::ranges::fill(partial_sums_.span(), 0.0F);
  for_row_blocks(context, blocks, [&](Index begin, Index end, Index block) {
    float* dweight = partial_sums_.data() + block * 2 * width;
    float* dbias = dweight + width;
    for (Index m = begin; m < end; ++m) {
      const float* from = x.data() + m * x.stride(0);
      const float* gradient = dy.data() + m * dy.stride(0);
      float* to = dx.data() + m * dx.stride(0);
      const auto [mean, inverse] = moments(from, width, eps_);
      double mean_g = 0;
      double mean_gn = 0;
      for (Index e = 0; e < width; ++e) {
        const double normal = (static_cast<double>(from[e]) - mean) * inverse;
        const double g = static_cast<double>(gradient[e]) * static_cast<double>(weight_.data()[e]);
        mean_g += g;
        mean_gn += g * normal;
        dweight[e] += gradient[e] * static_cast<float>(normal);
        dbias[e] += gradient[e];
      }
      mean_g /= static_cast<double>(width);
      mean_gn /= static_cast<double>(width);
      for (Index e = 0; e < width; ++e) {
        const double normal = (static_cast<double>(from[e]) - mean) * inverse;
        const double g = static_cast<double>(gradient[e]) * static_cast<double>(weight_.data()[e]);
        to[e] = static_cast<float>(inverse * (g - mean_g - normal * mean_gn));
      }
    }
  });
  for (Index block = 0; block < blocks.count(); ++block) {
    const float* partial = partial_sums_.data() + block * 2 * width;
    for (Index e = 0; e < width; ++e) weight_gradient_.data()[e] += partial[e];
    for (Index e = 0; e < bias_.count(); ++e) bias_gradient_.data()[e] += partial[width + e];
  }
}

std::vector<Parameter> LayerNorm::parameters() {
  std::vector<Parameter> list;
  list.push_back(parameter("weight", weight_, weight_gradient_));
  if (bias_.count() != 0) list.push_back(parameter("bias", bias_, bias_gradient_));
  return list;
}

void LayerNorm::load_state_dict(const StateDict& state, std::string_view prefix) {
  load_weight_and_bias(type_name(), state, prefix, {weight_, bias_, bias_gradient_});
}

std::string_view LayerNorm::type_name() const { return "LayerNorm"; }

}  // namespace qkv::inline v0::nn
