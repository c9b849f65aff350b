#include "lm/folded_head.h"

#include <algorithm>
#include <array>

#include "nn/products/linear_products.h"

namespace qkv::inline v0::lm {
namespace {

using Weights = nn::LinearWeights<float>;

/// The last three parameters of a plain model: W_o [E, W], W_h [V, E], b [V].
struct LastParameters {
  const nn::Parameter &output, &head, &bias;

  explicit LastParameters(const std::vector<nn::Parameter>& all)
      : output(all[all.size() - 3]), head(all[all.size() - 2]), bias(all[all.size() - 1]) {}
};

View<float, 2> matrix(const nn::Parameter& parameter, std::span<float> data) {
  return {data.data(), {parameter.sizes[0], parameter.sizes[1]}};
}
View<const float, 2> value(const nn::Parameter& parameter) { return matrix(parameter, parameter.value); }
View<float, 2> gradient(const nn::Parameter& parameter) { return matrix(parameter, parameter.gradient); }

}  // namespace

void FoldedHead::forward(
    const AttentionLM::Impl& model, View<const float, 2> attended, View<float, 2> logits, Context& context) {
  const LastParameters last(model.parameters);
  nn::resize(weight, std::array{logits.size(1), attended.size(1)});
  // M = W_h W_o is the dx of a Linear W_o whose dy is W_h.
  nn::linear_backward(
      View<const float, 2>(), value(last.head), Weights{value(last.output)}, weight.view<2>(), {}, context);
  nn::linear_forward(attended, Weights{weight, last.bias.value.data()}, logits, context);
}

void FoldedHead::backward(AttentionLM::Impl& model, View<const float, 2> attended, View<const float, 2> dlogits,
    View<float, 2> dattended, Context& context) {
  const LastParameters last(model.parameters);
  nn::resize(dweight, weight.sizes());
  std::ranges::fill(dweight.span(), 0.0F);
  nn::linear_backward(attended, dlogits, Weights{weight}, dattended, {dweight, last.bias.gradient.data()}, context);
  const View<const float, 2> dm = dweight;
  nn::linear_forward(dm, Weights{value(last.output)}, gradient(last.head), context);
  nn::linear_backward(dm, value(last.head), Weights{value(last.output)}, {}, {gradient(last.output)}, context);
}

}  // namespace qkv::inline v0::lm
