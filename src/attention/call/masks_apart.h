// Outputs beside the dense tensors that a mask borrows.
#pragma once

#include "attention/call/problem.h"
#include "attention/mask/summary.h"

namespace qkv::inline v0 {

/// ShapeError where an output shares memory with a dense mask, which is read while outputs are written.
inline void check_apart_from_masks(const char* function, const Problem& p, std::span<const NamedBox> outputs) {
  each_dense(p.mask.node, [&](const DenseLeaf& leaf) {
    for (const NamedBox& output : outputs) check_apart(function, output, {"the mask", leaf.dense().values});
  });
}

}  // namespace qkv::inline v0
