// Pieces of tensors of any element type: ranks send rows as bytes, and what computes takes the same views.
#pragma once

#include "qkv/attention.h"
#include "qkv/tensor.h"

namespace qkv::inline v0::dist {

using Gradients = detail::AnyGradients;

inline StoredType sum_type(StoredType type) { return type == StoredType::kF64 ? type : StoredType::kF32; }

inline Index count_of(const AnyView& x) {
  Index count = x.rank == 0 ? 0 : 1;
  for (int axis = 0; axis < x.rank; ++axis) count *= x.size(axis);
  return count;
}
/// Positions [begin, end) of an axis; null stays null.
inline AnyView sliced(AnyView x, std::size_t axis, Index begin, Index end) {
  if (x.is_null()) return x;
  if (x.data != nullptr) x.data += begin * x.strides[axis] * x.element_bytes();
  x.sizes[axis] = end - begin;
  return x;
}
/// Sizes alone, with another number of rows: [B, H, rows, ..].
inline AnyView with_rows(AnyView x, Index rows) {
  x.data = nullptr;
  x.sizes[2] = rows;
  return x;
}
/// Numbers of these sizes one after the other.
inline AnyView packed(AnyView like, StoredType type, std::byte* data) {
  like.data = data;
  like.type = type;
  Index stride = 1;
  for (int axis = like.rank; axis-- > 0; stride *= like.size(axis))
    like.strides[static_cast<std::size_t>(axis)] = stride;
  return like;
}

/// Memory of these sizes, of zeros; null stays null.
struct Buffer {
  Tensor<std::byte> memory;
  AnyView view;

  Buffer() = default;
  Buffer(const AnyView& like, StoredType type)
      : memory({count_of(like) * stored_bytes(type)}),
        view(like.rank == 0 ? like : packed(like, type, memory.data())) {}
};

/// to (+)= from, of the same sizes, added in the type of sums and rounded once. `from` need not be aligned.
void write(const AnyView& to, const AnyView& from, bool accumulate = false);

}  // namespace qkv::inline v0::dist
