// AveragePooling and FixedWeights: mixing tokens without attention. Every query gets the same mixture whatever the
// tokens are: the limit that attention removes. Masks are refused with an OptionError.
#pragma once

#include "qkv/nn/layer.h"

namespace qkv::inline v0::nn {

/// y[b, i] = sum over j of w[j] x[b, j] / sum(w): one learned number per position, no softmax. T is fixed at
/// config.length. A sum of 0 gives what the division gives. w is initialised N(0, 1).
class QKV_API FixedWeights : public Layer {
 public:
  explicit FixedWeights(const LayerConfig& config) : FixedWeights(config, true) {}
  std::string_view name() const override { return learned() ? "fixed-weights" : "average"; }
  Index embed_dim() const override { return 0; }
  Index output_dim() const override { return 0; }
  void forward_into(
      View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const override;
  void backward_into(
      View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context& context = Context::default_context()) override;
  std::vector<Parameter> parameters() override;  ///< w [T]

 protected:
  FixedWeights(const LayerConfig& config, bool learned);

 private:
  bool learned() const { return w_.rank() != 0; }
  std::vector<double> shares(Index length) const;

  Tensor<float> w_, gradient_;  // [T]; none: equal weights
};

/// y[b, i] = mean over j of x[b, j]; any embed_dim, any T, no parameters.
class QKV_API AveragePooling : public FixedWeights {
 public:
  explicit AveragePooling(const LayerConfig& config = {}) : FixedWeights(config, false) {}
};

}  // namespace qkv::inline v0::nn
