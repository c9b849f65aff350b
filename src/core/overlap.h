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
};

template <class T, int Rank>
  requires(Rank <= 4)
StridedBox box_of(const View<T, Rank>& view) {
  StridedBox box{reinterpret_cast<std::uintptr_t>(view.data()), static_cast<Index>(sizeof(T)), Rank, {}, {}};
  for (int axis = 0; axis < Rank; ++axis) {
    box.sizes[static_cast<std::size_t>(axis)] = view.size(axis);
    box.strides[static_cast<std::size_t>(axis)] = view.stride(axis);
  }
  return box;
}

/// True when some byte belongs to an element of both views. Never true for an empty view. Views whose axes run into one
/// another with strides that do not divide (no tensor and no slice of one has such) may cost too much to decide; they
/// count as overlapping.
QKV_API bool overlaps(const StridedBox& a, const StridedBox& b);

template <class T, int RankT, class U, int RankU> bool overlaps(const View<T, RankT>& a, const View<U, RankU>& b) {
  return overlaps(box_of(a), box_of(b));
}

/// A view with the name that an error text gives it.
struct NamedBox {
  template <class T, int Rank> NamedBox(std::string_view given_name, const View<T, Rank>& view)
      : name(given_name), box(box_of(view)) {
    for (int axis = 0; axis < Rank; ++axis) empty = empty || view.size(axis) <= 0;
  }

  NamedBox(std::string_view given_name, const AnyView& view)
      : name(given_name),
        box{reinterpret_cast<std::uintptr_t>(view.data), view.element_bytes(), view.rank, view.sizes, view.strides} {
    for (int axis = 0; axis < view.rank; ++axis) empty = empty || view.size(axis) <= 0;
  }

  std::string_view name;
  StridedBox box;
  bool empty = false;
};

/// ShapeError unless the number of elements and every distance within the view, in bytes, are at most 2^61.
QKV_API void check_reach(std::string_view function, const NamedBox& view);

/// Throws ShapeError when a view reaches too far, or an output shows an element twice, or shares one with an input or
/// with another output. Views that are null or empty are skipped. Allocates nothing.
QKV_API void check_outputs(
    std::string_view function, std::span<const NamedBox> outputs, std::span<const NamedBox> inputs);

/// Its parts, for outputs whose number is only known at run time: one output by itself, and one against another view.
QKV_API void check_written(std::string_view function, const NamedBox& output);
QKV_API void check_apart(std::string_view function, const NamedBox& output, const NamedBox& other);

}  // namespace qkv::inline v0
