// A call's outputs beside all that it reads while it writes them.
#pragma once

#include "attention/call/problem.h"
#include "qkv/offsets.h"

namespace qkv::inline v0 {

/// Throws ShapeError where an output shows an element twice, or shares one with another output, with the problem's own
/// tensors, with `inputs`, with a dense mask below `mask`, or with the lengths or the block table of a KeyValue; where
/// a tensor of `results`, of a capture, does, which is written or replaced too; and where any of these has sizes and no
/// memory. Allocates nothing.
void check_memory(const char* function, const Problem& p, const Mask::Node* mask, std::span<const NamedBox> outputs,
    std::span<const NamedBox> inputs = {}, const CaptureResult* results = nullptr);

inline StridedBox box_of(const Offsets& offsets) {
  StridedBox box;
  box.address = reinterpret_cast<std::uintptr_t>(offsets.data());
  box.element_bytes = offsets.element_bytes();
  box.rank = 1;
  box.sizes[0] = static_cast<Index>(offsets.size());
  box.strides[0] = 1;
  return box;
}

/// The results that a call of this direction writes; null: none.
inline const CaptureResult* written_results(const CaptureRequest& request, bool backward) {
  return request.result != nullptr && (request.what->of == CaptureOf::kGradient) == backward ? request.result : nullptr;
}

}  // namespace qkv::inline v0
