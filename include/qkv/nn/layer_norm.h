// LayerNorm over the last axis: y = (x - mean) / sqrt(variance + eps) * weight + bias; the variance divides by E.
#pragma once

#include "qkv/context.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {

struct LayerNormOptions {
  Index embed_dim = 0;
  double eps = 1e-5;  ///< > 0
  bool bias = true;
};

class QKV_API LayerNorm : public Affine {
 public:
  /// weight 1, bias 0.
  explicit LayerNorm(const LayerNormOptions& options);

  /// y [M, E] from x [M, E], which it may be. Means and variances are summed in f64.
  void forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context()) const;

  /// From x and dy [M, E]: dx [M, E] overwritten (may be dy itself); dweight, dbias += in one order for any number of
  /// threads.
  void backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx,
      Context& context = Context::default_context());

 private:
  double eps_ = 0;
  Tensor<float> partial_sums_;  // [blocks, 2, E]: workspace of backward
};

}  // namespace qkv::inline v0::nn
