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

class QKV_API LayerNorm : public Module {
 public:
  /// weight 1, bias 0.
  explicit LayerNorm(const LayerNormOptions& options);

  /// y [M, E] from x [M, E]. Means and variances are summed in f64.
  void forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context()) const;

  /// From x and dy [M, E]: dx [M, E] overwritten (may be dy itself); dweight, dbias += in one order for any number of
  /// threads.
  void backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx,
      Context& context = Context::default_context());

  std::vector<Parameter> parameters() override;
  /// The file decides whether there is a bias.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

 protected:
  std::string_view type_name() const override;

 private:
  double eps_ = 0;
  Tensor<float> weight_, weight_gradient_;  // [E]
  Tensor<float> bias_, bias_gradient_;      // [E], empty without bias
  Tensor<float> partial_sums_;              // [blocks, 2, E]: workspace of backward
};

}  // namespace qkv::inline v0::nn
