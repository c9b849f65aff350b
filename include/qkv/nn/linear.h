// Linear: y = x W^T + b. Products run on oneDNN, one thread each, in tiles that the shape alone decides, spread over the
// context's threads; sums over rows (dW, db) have one order. So the same bits for any number of threads.
//
// Shapes: M rows (tokens), K = in_features, N = out_features. The last axis of every view has stride 1.
#pragma once

#include "qkv/context.h"
#include "qkv/nn/module.h"

namespace qkv {
inline namespace v0 {
namespace nn {

struct LinearOptions {
  Index in_features = 0;
  Index out_features = 0;
  bool bias = true;
  std::uint64_t seed = 0;  ///< weight and bias: uniform +-1/sqrt(in_features), as PyTorch
};

class QKV_API Linear : public Module {
 public:
  explicit Linear(const LinearOptions& options);

  /// y [M, N] = x [M, K] W^T + b. Overwrites y, which shares no memory with x. Const: may run concurrently.
  void forward(View<const float, 2> x, View<float, 2> y, Context& context = Context::default_context()) const;

  /// From dy [M, N] and the x [M, K] of forward: dx [M, K] = dy W (null view: not wanted); dW += dy^T x; db += column sums of
  /// dy.
  void backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx,
                Context& context = Context::default_context());

  std::vector<Parameter> parameters() override;
  /// The file decides whether there is a bias.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

  Index in_features() const { return weight_.size(1); }
  Index out_features() const { return weight_.size(0); }
  bool has_bias() const { return bias_.count() != 0; }

 protected:
  std::string_view type_name() const override;

 private:
  Tensor<float> weight_, weight_gradient_;  // [N, K]
  Tensor<float> bias_, bias_gradient_;      // [N], empty without bias
};

}  // namespace nn
}  // namespace v0
}  // namespace qkv
