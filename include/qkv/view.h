// View<T, Rank>: a non-owning strided window on memory. Splitting heads is a view, not a copy.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "qkv/error.h"
#include "qkv/types.h"

namespace qkv::inline v0 {

template <class T> class Tensor;

/// "[2, 8, 128, 64]"
QKV_API std::string shape_text(const Index* sizes, int rank);

/// Throws the ShapeError of a view taken with the wrong number of axes.
[[noreturn]] QKV_API void throw_rank_error(int wanted, int got, const Index* sizes);

/// A strided view of `Rank` axes. Strides are in elements; a stride of 0 repeats. Copying a view copies no data.
/// A default-constructed view is null: no data, all sizes 0; functions read it as "not given".
template <class T, int Rank> class View {
 public:
  using Sizes = std::array<Index, static_cast<std::size_t>(Rank)>;

  View() = default;

  /// Contiguous (row-major) memory.
  View(T* data, const Sizes& sizes) : data_(data), sizes_(sizes) {
    Index stride = 1;
    each_axis([&](std::size_t axis) {
      const std::size_t inner = at(Rank - 1) - axis;
      strides_[inner] = stride;
      stride = product(stride, sizes_[inner]);
    });
  }

  View(T* data, const Sizes& sizes, const Sizes& strides) : data_(data), sizes_(sizes), strides_(strides) {}

  /// A read-only view of the elements of a mutable view.
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_const_v<U>)
  View(const View<U, Rank>& other) : data_(other.data()), sizes_(other.sizes()), strides_(other.strides()) {}

  /// The whole of a tensor. Throws ShapeError when the tensor has a different number of axes.
  template <class U>
    requires(std::is_same_v<U, std::remove_const_t<T>> && std::is_const_v<T>)
  View(const Tensor<U>& tensor) : View(tensor.template view<Rank>()) {}
  template <class U>
    requires std::is_same_v<U, T>
  View(Tensor<U>& tensor) : View(tensor.template view<Rank>()) {}

  T* data() const { return data_; }
  const Sizes& sizes() const { return sizes_; }
  const Sizes& strides() const { return strides_; }
  Index size(int axis) const { return sizes_[at(axis)]; }
  Index stride(int axis) const { return strides_[at(axis)]; }

  /// Number of elements; the largest Index if the number does not fit into one.
  Index count() const {
    Index n = 1;
    for (const Index size : sizes_) n = product(n, size);
    return n;
  }
  bool is_null() const { return data_ == nullptr && count() == 0; }
  std::string shape() const {
    return data_ == nullptr && sizes_ == Sizes{} ? "not given" : shape_text(sizes_.data(), Rank);
  }

  /// body(axis) for each axis, without a loop: numbers of a view that is passed on stay in registers.
  template <class Body> static void each_axis(const Body& body) {
    [&]<std::size_t... axis>(std::index_sequence<axis...>) { (body(axis), ...); }(
        std::make_index_sequence<static_cast<std::size_t>(Rank)>());
  }

  /// The element at (i0, i1, ...); indices are not checked.
  template <class... I>
    requires(sizeof...(I) == static_cast<std::size_t>(Rank))
  T& operator()(I... index) const {
    Index offset = 0;
    int axis = 0;
    ((offset += static_cast<Index>(index) * strides_[at(axis++)]), ...);
    return data_[offset];
  }

  /// The same data with two axes swapped.
  View transposed(int a, int b) const {
    View v = *this;
    std::swap(v.sizes_[at(a)], v.sizes_[at(b)]);
    std::swap(v.strides_[at(a)], v.strides_[at(b)]);
    return v;
  }

  /// Positions [begin, end) of one axis.
  View sliced(int axis, Index begin, Index end) const {
    View v = *this;
    if (v.data_ != nullptr) v.data_ += begin * stride(axis);
    v.sizes_[at(axis)] = end - begin;
    return v;
  }

 private:
  static constexpr std::size_t at(int axis) { return static_cast<std::size_t>(axis); }
  static constexpr Index product(Index a, Index b) {
    Index result = 0;
    return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<Index>::max() : result;
  }

  T* data_ = nullptr;
  Sizes sizes_{};
  Sizes strides_{};
};

/// A view of up to four axes whose element type is a value: what functions pass on, whatever their tensors hold.
/// Whether elements may be written is known to who passes it.
struct AnyView {
  std::byte* data = nullptr;
  StoredType type = StoredType::kF32;
  int rank = 0;
  std::array<Index, 4> sizes{}, strides{};  // in elements; those beyond the rank are 0

  AnyView() = default;
  template <class T, int Rank>
    requires(Rank <= 4)
  AnyView(const View<T, Rank>& x)
      : data(reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(x.data()))),
        type(stored_as<std::remove_const_t<T>>()),
        rank(Rank) {
    View<T, Rank>::each_axis([&](std::size_t axis) {
      sizes[axis] = x.sizes()[axis];
      strides[axis] = x.strides()[axis];
    });
  }

  Index size(int axis) const { return sizes[static_cast<std::size_t>(axis)]; }
  Index stride(int axis) const { return strides[static_cast<std::size_t>(axis)]; }
  Index element_bytes() const { return stored_bytes(type); }
  bool is_empty() const {
    for (int axis = 0; axis < rank; ++axis) {
      if (size(axis) == 0) return true;
    }
    return rank == 0;
  }
  bool is_null() const { return data == nullptr && is_empty(); }
  /// Number by number: two arrays that were just written would be compared in wider pieces, which waits for the writes.
  template <class... Sizes> bool has_sizes(Sizes... wanted) const {
    int axis = 0;
    return rank == static_cast<int>(sizeof...(wanted)) && ((size(axis++) == wanted) && ...);
  }
  std::string shape() const {
    return data == nullptr && sizes == decltype(sizes){} ? "not given" : shape_text(sizes.data(), rank);
  }

  /// The element (b, h, i, 0); null stays null.
  std::byte* at(Index b, Index h, Index i = 0) const {
    return data == nullptr ? nullptr : data + (b * strides[0] + h * strides[1] + i * strides[2]) * element_bytes();
  }
  template <class T> T* as(Index b, Index h, Index i = 0) const { return reinterpret_cast<T*>(at(b, h, i)); }
};

/// The bits of 16-bit floats, as other programs hold them, may be read as these types.
static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2 && alignof(BFloat16) == 2 && alignof(Float16) == 2);

/// Packed tokens [T, H, D] of one sequence viewed as [1, H, T, D]: for caches and attention, without a copy.
template <class T> View<T, 4> one_sequence(const View<T, 3>& x) {
  return {x.data(), {1, x.size(1), x.size(0), x.size(2)}, {0, x.stride(1), x.stride(0), x.stride(2)}};
}

/// [B, T, H*D] viewed as [B, H, T, D]: the heads of a projection, without a copy. Throws ShapeError when H does not
/// divide.
template <class T> View<T, 4> split_heads(const View<T, 3>& x, Index num_heads) {
  if (num_heads < 1 || x.size(2) % num_heads != 0) {
    throw ShapeError("[split_heads] num_heads must divide the last axis: got " + std::to_string(num_heads) +
                     " heads for " + x.shape());
  }
  const Index d = x.size(2) / num_heads;
  return {x.data(), {x.size(0), num_heads, x.size(1), d}, {x.stride(0), d * x.stride(2), x.stride(1), x.stride(2)}};
}

}  // namespace qkv::inline v0
