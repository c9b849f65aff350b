// Attention and its derivative as stages, for every task that goes back by hand: functions [B, H, T, d], layers [B, L, E], a model.
//
//   S = factor q k^T    P = softmax(S)    O = P v
//   dv = P^T dO    dP = dO v^T    dS = P * (dP - rowsum(dP * P))    dq = factor dS k    dk = factor dS^T q
//
// Arrays carry a prefix, so that two of these fit one Work; given: q k v dvalues causal, made: factor visible scores weights values
// dv dweights dscores dscaled dq dk.
#pragma once

#include <string>

#include "judge/textbook.h"

namespace qkv::judge {

/// Names of the stages, in order.
struct DerivativeStages {
  std::string_view factor, see, scores, mask, softmax, mix, dv, dweights, dscores, dscale, dq, dk;
};
inline constexpr DerivativeStages kDerivative{"factor", "see",      "scores and scale", "mask",   "softmax", "mix",
                                              "dv",     "dweights", "dscores",          "dscale", "dq",      "dk"};
inline constexpr DerivativeStages kLayerDerivative{
    "layer factor", "layer see",      "layer scores and scale", "layer mask",   "layer softmax", "layer mix",
    "layer dv",     "layer dweights", "layer dscores",          "layer dscale", "layer dq",      "layer dk"};

/// What a stage does to the arrays of a prefix; left out where these are missing.
using PrefixedStep = std::function<void(Work& work, const std::string& prefix)>;
Step prefixed(std::string prefix, PrefixedStep step);

/// factor to mix.
Textbook derivative_forward(const DerivativeStages& names, const std::string& prefix);
/// dv to dk.
Textbook derivative_backward(const DerivativeStages& names, const std::string& prefix);

/// x^T dy over all but the last axis: the gradient of W in y = x W.
Array weight_gradient(const Array& x, const Array& dy);

/// What fills `out` behind what is there.
void append(Textbook& out, Textbook more);

}  // namespace qkv::judge
