// What the toy model's textbook and its mistakes share: the parameters' names, and the gradient of the loss.
#pragma once

#include <array>

#include "judge/textbook.h"

namespace qkv::judge {

inline constexpr std::array<const char*, 7> kLmParameters = {"embed", "position", "W_q", "W_k", "W_v", "head", "head_bias"};

/// The gradient of the loss by the logits, from probabilities that are a softmax along `axis`. [B, T, V]
Array lm_dlogits(const Work& work, int axis);

}  // namespace qkv::judge
