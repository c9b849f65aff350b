// One call from XLA as jax.cc sees it: operands with the leading axes that jax.vmap adds, attributes by name. Not:
// attention.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "jax/xla_ffi.h"
#include "qkv/error.h"
#include "qkv/types.h"
#include "qkv/view.h"

namespace qkv::python::xla {

template <class Element> constexpr DataType data_type() {
  using T = std::remove_const_t<Element>;
  if constexpr (std::is_same_v<T, float>) return kF32;
  if constexpr (std::is_same_v<T, double>) return kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return kBF16;
  if constexpr (std::is_same_v<T, Float16>) return kF16;
  if constexpr (std::is_same_v<T, std::uint8_t>) return kPred;
  if constexpr (std::is_same_v<T, std::int32_t>) return kS32;
  if constexpr (std::is_same_v<T, std::uint32_t>) return kU32;
}

// A dense, row-major buffer [leading..., axes of Rank]. Leading axes come from vmap and have the call's size or 1.
class Operand {
 public:
  Operand(const Buffer& buffer, int rank) : buffer_(&buffer), rank_(rank) {
    if (buffer.rank < rank)
      throw ShapeError("[qkv.jax] an operand of at least " + std::to_string(rank) + " axes was expected");
  }

  DataType type() const { return buffer_->type; }
  std::int64_t leading_axes() const { return buffer_->rank - rank_; }
  Index leading_size(std::int64_t axis) const { return buffer_->sizes[axis]; }
  Index size(int axis) const { return buffer_->sizes[leading_axes() + axis]; }
  Index leading_count() const { return product(0, leading_axes()); }
  Index count() const { return product(leading_axes(), buffer_->rank); }

  /// The data of the n-th call out of those that `sizes` of leading axes make; an axis of size 1 repeats.
  template <class T> T* data(Index n, const std::vector<Index>& sizes) const {
    if (buffer_->type != data_type<T>())
      throw ShapeError("[qkv.jax] an operand has an element type that was not expected");
    Index at = 0, step = 1;
    for (std::int64_t axis = leading_axes() - 1; axis >= 0; --axis) {
      const Index size = sizes[static_cast<std::size_t>(axis)];
      if (leading_size(axis) != 1) {
        at += (n % size) * step;
        step *= leading_size(axis);
      }
      n /= size;
    }
    return static_cast<T*>(buffer_->data) + at * count();
  }

  /// [B, H, T, D], which lies as [B, T, H, D] where `tokens_first`.
  template <class T> View<T, 4> heads(Index n, const std::vector<Index>& sizes, bool tokens_first) const {
    const View<T, 4> view(data<T>(n, sizes), {size(0), size(1), size(2), size(3)});
    return tokens_first ? view.transposed(1, 2) : view;
  }
  /// The same with all calls' batches one behind the other: [n * B, H, T, D].
  template <class T> View<T, 4> folded_heads(const std::vector<Index>& sizes, bool tokens_first) const {
    const View<T, 4> view(data<T>(0, sizes), {leading_count() * size(0), size(1), size(2), size(3)});
    return tokens_first ? view.transposed(1, 2) : view;
  }

 private:
  Index product(std::int64_t begin, std::int64_t end) const {
    Index n = 1;
    for (std::int64_t axis = begin; axis < end; ++axis) n *= buffer_->sizes[axis];
    return n;
  }

  const Buffer* buffer_;
  int rank_;
};

inline const Buffer& buffer_at(const Buffers& buffers, std::int64_t n) {
  if (n >= buffers.count) throw ShapeError("[qkv.jax] too few operands or results");
  return *static_cast<const Buffer*>(buffers.values[n]);
}

template <class T> T attribute(const CallFrame& call, std::string_view name) {
  constexpr DataType kType = std::is_same_v<T, double> ? kF64 : kS64;
  const Attributes& all = call.attributes;
  for (std::int64_t n = 0; n < all.count; ++n) {
    if (std::string_view(all.names[n]->begin, all.names[n]->size) != name || all.kinds[n] != kScalarAttribute) continue;
    const auto* scalar = static_cast<const Scalar*>(all.values[n]);
    if (scalar->type == kType) return *static_cast<const T*>(scalar->value);
  }
  throw OptionError(
      "[qkv.jax] attribute " + std::string(name) + " is missing: the package and its module have different versions");
}

/// The sizes of the leading axes of a call, from all its operands.
inline std::vector<Index> leading_sizes(const std::vector<Operand>& operands) {
  std::vector<Index> sizes(static_cast<std::size_t>(operands.front().leading_axes()), 1);
  for (const Operand& operand : operands) {
    if (operand.leading_axes() != static_cast<std::int64_t>(sizes.size())) {
      throw ShapeError("[qkv.jax] operands differ in the number of axes that vmap put in front");
    }
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      const Index size = operand.leading_size(static_cast<std::int64_t>(axis));
      if (size != 1) sizes[axis] = size;
    }
  }
  return sizes;
}

}  // namespace qkv::python::xla
