// Do two strided views share memory? Decided exactly: interleaved slices of one packed buffer ([B, T, 3, H, D]) do not.
// Does one view show an element twice, or reach beyond the address space?
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "qkv/export.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// A view of up to four axes without its element type.
struct StridedBox {
  std::uintptr_t address = 0;
  Index element_bytes = 1;
  int rank = 0;
  std::array<Index, 4> sizes{};
  std::array<Index, 4> strides{};  // in elements, any sign

  StridedBox() = default;
  StridedBox(const AnyView& view)
      : address(reinterpret_cast<std::uintptr_t>(view.data)),
        element_bytes(view.element_bytes()),
        rank(view.rank),
        sizes(view.sizes),
        strides(view.strides) {}
  /// Not by way of AnyView, whose numbers would be copied in wider pieces than they were just written in.
  template <class T, int Rank> StridedBox(const View<T, Rank>& view)
      : address(reinterpret_cast<std::uintptr_t>(view.data())), element_bytes(sizeof(T)), rank(Rank) {
    View<T, Rank>::each_axis([&](std::size_t axis) {
      sizes[axis] = view.sizes()[axis];
      strides[axis] = view.strides()[axis];
    });
  }

  bool is_empty() const {
    for (int axis = 0; axis < rank; ++axis) {
      if (sizes[static_cast<std::size_t>(axis)] <= 0) return true;
    }
    return rank == 0;  // not given
  }
};

/// True when some byte belongs to an element of both views. Never true for an empty view. Views whose axes run into one
/// another with strides that do not divide (no tensor and no slice of one has such) may cost too much to decide; they
/// count as overlapping.
QKV_API bool overlaps(const StridedBox& a, const StridedBox& b);

/// Whether two indices of a view are one element.
QKV_API bool shows_twice(const StridedBox& box);

/// A view with the name that an error text gives it, and its bytes from the first to the last, which each comparison
/// with another view reads; of a view that reaches too far they mean nothing.
struct QKV_API NamedBox {
  template <class Of> NamedBox(std::string_view given_name, const Of& view) : name(given_name), box(view) {
    find_bytes();
  }

  std::string_view name;
  StridedBox box;
  bool empty;
  std::uintptr_t begin, end;

 private:
  void find_bytes();
};

/// ShapeError unless the number of elements and every distance within the view, in bytes, are at most 2^61.
QKV_API void check_reach(std::string_view function, std::string_view name, const StridedBox& box);

/// ShapeError for a view that has elements and no memory, or that reaches too far.
QKV_API void check_given(std::string_view function, const NamedBox& view);

/// Throws ShapeError when a view is not as check_given wants it, or an output shows an element twice, or shares one
/// with an input or with another output. Empty views are skipped. Allocates nothing.
QKV_API void check_outputs(
    std::string_view function, std::span<const NamedBox> outputs, std::span<const NamedBox> inputs);

/// Its parts, for outputs whose number is only known at run time: one output by itself, and one against another view.
QKV_API void check_written(std::string_view function, const NamedBox& output);
QKV_API void check_apart(std::string_view function, const NamedBox& output, const NamedBox& other);

}  // namespace qkv::inline v0
