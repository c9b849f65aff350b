// Gradients of a textbook by central differences, and whether an answer's agree.
#pragma once

#include <optional>
#include <string>

#include "judge/search/search.h"

namespace qkv::judge {

struct GradientDifference {
  std::string name;  ///< of the input or parameter: "x", "W_q"
  double expected = 0, got = 0, bound = 0;
};

/// The first gradient of the case (answers "d_NAME") that is not the derivative of sum(out dout) within its bound, at
/// most 48 elements of each array being compared. The difference quotients' own error is in the bound (Richardson).
std::optional<GradientDifference> gradient_difference(const Task& task, const Choices& choices, const Case& one);

}  // namespace qkv::judge
