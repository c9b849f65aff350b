#include "qkv/nn/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/norm.h"

namespace qkv::inline v0::nn {
namespace {

/// [M, E] as [1, 1, M, E].
template <class T> View<T, 4> as_tokens(View<T, 2> x) {
  return {x.data(), {1, 1, x.size(0), x.size(1)}, {0, 0, x.stride(0), 1}};
}

}  // namespace

LayerNorm::LayerNorm(const LayerNormOptions& options)
    : Affine("LayerNorm", {options.embed_dim}, options.bias), eps_(options.eps) {
  check<ShapeError>(options.embed_dim > 0, "LayerNorm", "embed_dim must be at least 1: got ", options.embed_dim);
  check<OptionError>(
      options.eps > 0 && std::isfinite(options.eps), "LayerNorm", "eps must be a number above 0: got ", options.eps);
  std::ranges::fill(weight_.span(), 1.0F);
}

void LayerNorm::forward(View<const float, 2> x, View<float, 2> y, Context& context) const {
  check<ShapeError>(x.size(1) == weight_.count() && y.sizes() == x.sizes(), "LayerNorm::forward",
      "x and y must be [M, ", weight_.count(), "]: got ", x, " and ", y);
  check_rows("LayerNorm::forward", "x", x, "y", y);
  const float* const bias = has_bias() ? bias_.data() : nullptr;
  norm_forward<float>(as_tokens(x), {weight_.data(), bias, eps_, true}, as_tokens(y), context);
}

void LayerNorm::backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context) {
  check<ShapeError>(x.size(1) == weight_.count() && dy.sizes() == x.sizes() && dx.sizes() == x.sizes(),
      "LayerNorm::backward", "x, dy and dx must be [M, ", weight_.count(), "]: got ", x, ", ", dy, " and ", dx);
  check_rows("LayerNorm::backward", "x", x, "dy", dy, "dx", dx);
  norm_backward<float>(as_tokens(x), as_tokens(dy), {weight_.data(), nullptr, eps_, true}, as_tokens(dx),
      weight_gradient_.data(), has_bias() ? bias_gradient_.data() : nullptr, partial_sums_, context);
}

}  // namespace qkv::inline v0::nn
