#include "qkv/nn/linear.h"

#include "core/check.h"
#include "nn/parameters/parameters.h"
#include "nn/products/linear_products.h"
#include "nn/rows/check_rows.h"

namespace qkv::inline v0::nn {

Linear::Linear(const LinearOptions& options)
    : Affine("Linear", {options.out_features, options.in_features}, options.bias) {
  check<ShapeError>(options.in_features > 0 && options.out_features > 0, "Linear",
      "in_features and out_features must be at least 1: got ", options.in_features, " and ", options.out_features);
  fill_uniform(weight_.span(), linear_bound(options.in_features), options.seed, options.stream);
  fill_uniform(bias_.span(), linear_bound(options.in_features), options.seed, options.stream + 1);
}

LinearGradients Linear::own_gradients() { return {weight_gradient_, has_bias() ? bias_gradient_.data() : nullptr}; }

#define QKV_DEFINE(T)                                                                                                  \
  void Linear::forward(View<const T, 2> x, View<T, 2> y, Context& context) const {                                     \
    check<ShapeError>(x.size(1) == in_features(), "Linear::forward", "the last axis of x must be in_features: got x ", \
        x, ", weight ", weight_);                                                                                      \
    check<ShapeError>(y.size(0) == x.size(0) && y.size(1) == out_features(), "Linear::forward",                        \
        "y must be [rows of x, out_features]: got y ", y, ", x ", x, ", weight ", weight_);                            \
    check_rows("Linear::forward", "x", x, "y", y);                                                                     \
    linear_forward(x, weights_of<T>(weight_, bias_), y, context);                                                      \
  }                                                                                                                    \
  void Linear::backward(View<const T, 2> x, View<const T, 2> dy, View<T, 2> dx, Context& context) {                    \
    check<ShapeError>(x.size(1) == in_features() && dy.size(0) == x.size(0) && dy.size(1) == out_features(),           \
        "Linear::backward", "x must be [M, in_features] and dy [M, out_features]: got x ", x, ", dy ", dy,             \
        ", weight ", weight_);                                                                                         \
    check<ShapeError>(dx.is_null() || dx.sizes() == x.sizes(), "Linear::backward",                                     \
        "dx must have the sizes of x: got dx ", dx, ", x ", x);                                                        \
    check_rows("Linear::backward", "x", x, "dy", dy, "dx", dx);                                                        \
    linear_backward(x, dy, weights_of<T>(weight_, {}), dx, own_gradients(), context);                                  \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

namespace {

template <class T> void forward(
    View<const T, 2> x, View<const T, 2> weight, View<const float, 1> bias, View<T, 2> y, Context& context, Bits bits) {
  check<ShapeError>(x.size(1) == weight.size(1) && y.size(0) == x.size(0) && y.size(1) == weight.size(0) &&
                        (bias.is_null() || bias.size(0) == weight.size(0)),
      "linear_forward", "x must be [M, K], weight [N, K], bias [N] and y [M, N]: got x ", x, ", weight ", weight,
      ", bias ", bias, ", y ", y);
  check_rows("linear_forward", "x", x, "weight", weight, "bias", bias, "y", y);
  linear_forward(x, LinearWeights<T>{weight, bias.data(), {}, bits == Bits::kInvariant}, y, context);
}

template <class T> void backward(View<const T, 2> x, View<const T, 2> dy, View<const T, 2> weight, View<T, 2> dx,
    View<float, 2> dweight, View<float, 1> dbias, Context& context) {
  check<ShapeError>(x.size(1) == weight.size(1) && dy.size(0) == x.size(0) && dy.size(1) == weight.size(0) &&
                        (dx.is_null() || dx.sizes() == x.sizes()) &&
                        (dweight.is_null() || dweight.sizes() == weight.sizes()) &&
                        (dbias.is_null() || dbias.size(0) == weight.size(0)),
      "linear_backward", "x, dx must be [M, K], dy [M, N], weight, dweight [N, K] and dbias [N]: got x ", x, ", dy ",
      dy, ", weight ", weight, ", dx ", dx, ", dweight ", dweight, ", dbias ", dbias);
  check_rows("linear_backward", "x", x, "dy", dy, "weight", weight, "dx", dx, "dweight", dweight, "dbias", dbias);
  linear_backward(x, dy, LinearWeights<T>{weight, nullptr}, dx, {dweight, dbias.data()}, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                       \
  void linear_forward(View<const T, 2> x, View<const T, 2> weight, View<const float, 1> bias, View<T, 2> y, \
      Context& context, Bits bits) {                                                                        \
    forward(x, weight, bias, y, context, bits);                                                             \
  }                                                                                                         \
  void linear_backward(View<const T, 2> x, View<const T, 2> dy, View<const T, 2> weight, View<T, 2> dx,     \
      View<float, 2> dweight, View<float, 1> dbias, Context& context) {                                     \
    backward(x, dy, weight, dx, dweight, dbias, context);                                                   \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::nn
