// AveragePooling and FixedWeights: mixing tokens without attention. Every query gets the same mixture whatever the tokens are:
// the limit that attention removes. Masks are refused with an OptionError.
#pragma once

#include "qkv/nn/layer.h"

namespace qkv::inline v0::nn {

/// y[b, i] = mean over j of x[b, j]; any embed_dim.
class QKV_API AveragePooling : public Layer {
 public:
  explicit AveragePooling(const LayerConfig& config = {});
  std::string_view name() const override;
  Index embed_dim() const override { return 0; }
  Index output_dim() const override { return 0; }
  void forward_into(View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const override;
  void backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx,
                     Context& context = Context::default_context()) override;
  std::vector<Parameter> parameters() override;

 protected:
  std::string_view type_name() const override;
};

/// y[b, i] = sum over j of w[j] x[b, j] / sum(w): one learned number per position, no softmax. T is fixed at config.length.
/// A sum of 0 gives what the division gives. w is initialised N(0, 1).
class QKV_API FixedWeights : public Layer {
 public:
  explicit FixedWeights(const LayerConfig& config);
  std::string_view name() const override;
  Index embed_dim() const override { return 0; }
  Index output_dim() const override { return 0; }
  void forward_into(View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const override;
  void backward_into(View<const float, 3> dy, Saved& saved, View<float, 3> dx,
                     Context& context = Context::default_context()) override;
  std::vector<Parameter> parameters() override;  ///< w [T]

 protected:
  std::string_view type_name() const override;

 private:
  Tensor<float> w_, gradient_;  // [T]
};

}  // namespace qkv::inline v0::nn
