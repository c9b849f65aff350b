// Dropout judged by what many calls gave: which weights are zero, how large the others are. Values are unit vectors, so
// that each number of the output is one weight.
//
// The share of zeros is compared with p by Hoeffding's inequality: of N independent weights it lies within sqrt(ln(2e9)
// / 2N) of p but for one judgement in 1e9.
#pragma once

#include <string>

#include "judge/textbook.h"

namespace qkv::judge {

struct DropoutFinding {
  bool right = true;
  std::string id;      ///< of the catalogue's entry that explains all calls; right: of a convention, or empty
  std::string detail;  ///< one line
};

/// `work`: a textbook's run on the probe, with weights and scores [B, H, Tq, Tk], v [B, H, Tk, n] whose columns are
/// unit vectors, and call and dropout in the probe's metadata. `out`: [R, B, H, Tq, n] or [R, B, Tq, H n]. `unit`: of
/// rounding (match.h).
DropoutFinding judge_dropout(const Work& work, const Array& out, double unit);

/// v [B, H, Tk, 2 Tk] that shows each weight twice: what is drawn once for a weight is drawn twice for an output.
Array weights_shown_twice(Index batch, Index heads, Index keys);

}  // namespace qkv::judge
