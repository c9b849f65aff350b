// Tensor<T>: owns contiguous, 64-byte aligned, row-major memory. Move-only; a copy is named clone().
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "qkv/view.h"

namespace qkv::inline v0 {

/// `count` * `size` bytes, 64-byte aligned. Throws ShapeError when the product overflows, std::bad_alloc when there is
/// no memory.
QKV_API void* allocate_aligned(Index count, std::size_t size);
QKV_API void free_aligned(void* memory) noexcept;

/// Product of sizes. Throws ShapeError on a negative size or overflow.
QKV_API Index checked_count(std::span<const Index> sizes);

template <class T> class Tensor {
 public:
  Tensor() = default;

  /// Zeros of the given sizes.
  explicit Tensor(std::vector<Index> sizes) : sizes_(std::move(sizes)), count_(checked_count(sizes_)) {
    data_.reset(static_cast<T*>(allocate_aligned(count_, sizeof(T))));
    std::fill_n(data_.get(), count_, T{});
  }
  Tensor(std::initializer_list<Index> sizes) : Tensor(std::vector<Index>(sizes)) {}

  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  /// `other` is left empty.
  Tensor& operator=(Tensor&& other) noexcept {
    sizes_ = std::exchange(other.sizes_, {});
    count_ = std::exchange(other.count_, 0);
    data_ = std::move(other.data_);
    return *this;
  }

  /// A copy; empty where this is (created without sizes, or moved from).
  Tensor clone() const {
    if (sizes_.empty() && count_ == 0) return {};
    Tensor copy(sizes_);
    std::copy_n(data_.get(), count_, copy.data_.get());
    return copy;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  Index count() const { return count_; }
  int rank() const { return static_cast<int>(sizes_.size()); }
  Index size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  const std::vector<Index>& sizes() const { return sizes_; }
  std::string shape() const { return shape_text(sizes_.data(), rank()); }

  std::span<T> span() { return {data_.get(), static_cast<std::size_t>(count_)}; }
  std::span<const T> span() const { return {data_.get(), static_cast<std::size_t>(count_)}; }

  template <int Rank> View<T, Rank> view() { return {data_.get(), sizes_of<Rank>()}; }
  template <int Rank> View<const T, Rank> view() const { return {data_.get(), sizes_of<Rank>()}; }

  /// The same elements with other sizes. Throws ShapeError when the counts differ.
  void reshape(std::vector<Index> sizes) {
    if (checked_count(sizes) != count_) {
      throw ShapeError("[Tensor::reshape] the number of elements must stay the same: got " + shape() + " to " +
                       shape_text(sizes.data(), static_cast<int>(sizes.size())));
    }
    sizes_ = std::move(sizes);
  }

 private:
  struct Free {
    void operator()(T* p) const noexcept { free_aligned(p); }
  };

  template <int Rank> typename View<T, Rank>::Sizes sizes_of() const {
    if (rank() != Rank) throw_rank_error(Rank, rank(), sizes_.data());
    typename View<T, Rank>::Sizes sizes{};
    View<T, Rank>::each_axis([&](std::size_t axis) { sizes[axis] = sizes_[axis]; });
    return sizes;
  }

  std::vector<Index> sizes_{};
  Index count_ = 0;
  std::unique_ptr<T, Free> data_;
};

namespace detail {
template <class X> struct Element {  ///< of what is neither tensor nor view
  using type = float;
  static constexpr bool known = false;
};
template <class T> struct Element<Tensor<T>> {
  using type = T;
  static constexpr bool known = true;
};
template <class T, int Rank> struct Element<View<T, Rank>> : Element<Tensor<std::remove_const_t<T>>> {};
}  // namespace detail

/// A tensor or view, and the type of its elements.
template <class X>
concept Operand = detail::Element<std::remove_cvref_t<X>>::known;
template <class X> using ElementOf = typename detail::Element<std::remove_cvref_t<X>>::type;

/// An input of a function of X, or one beside it: any tensor or view of the same elements, or of their sums.
template <class X, int Rank> using In = std::type_identity_t<View<const ElementOf<X>, Rank>>;
template <class X, int Rank> using SumsIn = std::type_identity_t<View<const Accumulator<ElementOf<X>>, Rank>>;
/// An output.
template <class X, int Rank> using Out = std::type_identity_t<View<ElementOf<X>, Rank>>;
template <class X, int Rank> using SumsOut = std::type_identity_t<View<Accumulator<ElementOf<X>>, Rank>>;

/// Numbers of the type of sums: of that of q, or float where q has 16 bits. Borrowed.
template <int Rank> struct SumsView {
  SumsView() = default;
  SumsView(View<const float, Rank> numbers) : f32(numbers) {}
  SumsView(View<const double, Rank> numbers) : f64(numbers) {}
  SumsView(View<float, Rank> numbers) : f32(numbers) {}
  SumsView(View<double, Rank> numbers) : f64(numbers) {}
  SumsView(const Tensor<float>& numbers) : f32(numbers) {}
  SumsView(const Tensor<double>& numbers) : f64(numbers) {}
  SumsView(const Tensor<float>&&) = delete;  // a temporary would be destroyed before the call
  SumsView(const Tensor<double>&&) = delete;

  bool is_null() const { return f32.is_null() && f64.is_null(); }

  View<const float, Rank> f32;
  View<const double, Rank> f64;
};

}  // namespace qkv::inline v0
