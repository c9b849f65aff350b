// Two boxes share a byte iff  sum_k stride_a[k] x_k + e_a - sum_k stride_b[k] y_k - e_b = address_b - address_a  (all
// in bytes) has a solution with x, y, e inside their bounds: one bounded linear Diophantine equation. Axes whose steps
// tile one another are merged first, after which an ordinary tensor leaves two or three, each with at most two
// candidates.
#include "core/overlap.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

// stride * d for every whole d in [low, high]
struct Axis {
  Index stride;
  Index low;
  Index high;
};

constexpr int kMaxAxes = 9;         // four of each box, and the bytes inside an element
constexpr int kMaxSteps = 1 << 16;  // some 100 us; reached only by views that slicing never creates

class Equation {
 public:
  Equation(const StridedBox& a, const StridedBox& b) {
    add({1, -(b.element_bytes - 1), a.element_bytes - 1});
    for (int n = 0; n < a.rank; ++n) add_axis(a, n, +1);
    for (int n = 0; n < b.rank; ++n) add_axis(b, n, -1);
    merge();
  }

  bool reaches(Index target) {
    std::array<Index, kMaxAxes + 1> least{};  // least[n], most[n]: what the first n axes can add up to
    std::array<Index, kMaxAxes + 1> most{};
    for (std::size_t n = 0; n < count_; ++n) {
      least[n + 1] = least[n] + axes_[n].stride * axes_[n].low;
      most[n + 1] = most[n] + axes_[n].stride * axes_[n].high;
    }
    return target >= least[count_] && target <= most[count_] && search(count_, target, least, most);
  }

 private:
  using Sums = std::array<Index, kMaxAxes + 1>;

  // Finest first.
  void add(Axis axis) {
    std::size_t slot = count_++;
    for (; slot > 0 && axes_[slot - 1].stride > axis.stride; --slot) axes_[slot] = axes_[slot - 1];
    axes_[slot] = axis;
  }

  void add_axis(const StridedBox& box, int n, Index sign) {
    const Index last = box.sizes[static_cast<std::size_t>(n)] - 1;
    const Index stride = sign * box.strides[static_cast<std::size_t>(n)] * box.element_bytes;
    if (last == 0 || stride == 0) return;
    add(stride > 0 ? Axis{stride, 0, last} : Axis{-stride, -last, 0});
  }

  // Steps of m * s over at least m neighbouring multiples of s give every multiple of s between the ends.
  void merge() {
    std::size_t kept = 0;
    for (std::size_t n = 1; n < count_; ++n) {
      Axis& fine = axes_[kept];
      const Axis coarse = axes_[n];
      const Index ratio = coarse.stride / fine.stride;
      if (coarse.stride % fine.stride == 0 && ratio <= fine.high - fine.low + 1) {
        fine.low += ratio * coarse.low;
        fine.high += ratio * coarse.high;
      } else {
        axes_[++kept] = coarse;
      }
    }
    count_ = kept + 1;
  }

  // Can the first n axes add up to target, which lies within their sums?
  bool search(std::size_t n, Index target, const Sums& least, const Sums& most) {
    if (++steps_ > kMaxSteps) return true;
    if (n == 1) return true;  // the finest axis counts single bytes
    const Axis& axis = axes_[n - 1];
    const Index first = std::max(axis.low, divide_up(target - most[n - 1], axis.stride));
    const Index last = std::min(axis.high, divide_down(target - least[n - 1], axis.stride));
    for (Index d = first; d <= last; ++d) {
      if (search(n - 1, target - axis.stride * d, least, most)) return true;
    }
    return false;
  }

  static Index divide_down(Index x, Index y) { return x / y - (x % y < 0 ? 1 : 0); }
  static Index divide_up(Index x, Index y) { return x / y + (x % y > 0 ? 1 : 0); }

  std::array<Axis, kMaxAxes> axes_{};
  std::size_t count_ = 0;
  int steps_ = 0;
};

/// Most views lie in memory of their own and need no equation.
bool share_byte(const NamedBox& a, const NamedBox& b) {
  return a.end > b.begin && b.end > a.begin &&
         Equation(a.box, b.box).reaches(static_cast<Index>(b.box.address - a.box.address));
}

std::string shape_of(const StridedBox& box) { return shape_text(box.sizes.data(), box.rank); }

}  // namespace

bool overlaps(const StridedBox& a, const StridedBox& b) {
  const NamedBox x("", a), y("", b);
  return !x.empty && !y.empty && share_byte(x, y);
}

/// An axis that steps over all of the finer ones adds none.
bool shows_twice(const StridedBox& box) {
  if (box.is_empty()) return false;
  std::array<std::size_t, 4> order{};  // the axes by their strides, the finest first
  std::size_t axes = 0;
  const auto stride = [&](std::size_t n) { return std::abs(box.strides[order[n]]); };
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(box.rank); ++axis) {
    if (box.sizes[axis] <= 1) continue;
    std::size_t n = axes++;
    for (; n > 0 && std::abs(box.strides[axis]) < stride(n - 1); --n) order[n] = order[n - 1];
    order[n] = axis;
  }
  StridedBox finer = box;  // at index 0 of the coarser axes
  finer.sizes.fill(1);
  Index reach = 1;
  for (std::size_t n = 0; n < axes; ++n) {
    const std::size_t axis = order[n];
    if (stride(n) < reach) {
      // The rest of this axis against its index 0.
      StridedBox rest = finer;
      rest.address += static_cast<std::uintptr_t>(box.strides[axis] * box.element_bytes);
      rest.sizes[axis] = box.sizes[axis] - 1;
      if (overlaps(finer, rest)) return true;
    }
    reach += (box.sizes[axis] - 1) * stride(n);
    finer.sizes[axis] = box.sizes[axis];
  }
  return false;
}

void NamedBox::find_bytes() {
  empty = box.is_empty();
  if (empty) return;
  const auto bytes = static_cast<std::uintptr_t>(box.element_bytes);
  std::uintptr_t before = 0, after = bytes;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(box.rank); ++axis) {
    const auto reach =
        static_cast<std::uintptr_t>(box.sizes[axis] - 1) * static_cast<std::uintptr_t>(box.strides[axis]) * bytes;
    after += box.strides[axis] > 0 ? reach : 0;
    before += box.strides[axis] > 0 ? 0 : reach;
  }
  begin = box.address + before;
  end = box.address + after;
}

void check_reach(std::string_view function, std::string_view name, const StridedBox& box) {
  if (box.is_empty()) return;
  constexpr Index limit = Index{1} << 61;
  Index count = 1, reach = box.element_bytes;
  bool fits = true;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(box.rank); ++axis) {
    Index bytes = 0;
    fits = fits && box.strides[axis] > -limit && !__builtin_mul_overflow(count, box.sizes[axis], &count) &&
           !__builtin_mul_overflow(box.sizes[axis] - 1, std::abs(box.strides[axis]), &bytes) &&
           !__builtin_mul_overflow(bytes, box.element_bytes, &bytes) && !__builtin_add_overflow(reach, bytes, &reach);
  }
  check<ShapeError>(
      fits && count <= limit && reach <= limit, function, name,
      " must have at most 2^61 elements, the last at most 2^61 bytes from the first: got ",
      [&] { return shape_of(box); }, ", strides ", [&] { return shape_text(box.strides.data(), box.rank); });
}

void check_given(std::string_view function, const NamedBox& view) {
  check<ShapeError>(
      view.empty || view.box.address != 0, function, view.name, " has no memory: got ",
      [&] { return shape_of(view.box); }, " at a null pointer");
  check_reach(function, view.name, view.box);
}

void check_written(std::string_view function, const NamedBox& output) {
  const StridedBox& box = output.box;
  if (output.empty) return;
  check_given(function, output);
  for (int axis = 0; axis < box.rank; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    check<ShapeError>(box.sizes[at] == 1 || box.strides[at] != 0, function, output.name,
        " is written, so no axis may repeat with stride 0: got axis ", axis, " of ", [&] { return shape_of(box); });
  }
  check<ShapeError>(
      !shows_twice(box), function, output.name, " is written, so no two of its elements may share memory: got ",
      [&] { return shape_of(box); }, ", strides ", [&] { return shape_text(box.strides.data(), box.rank); });
}

void check_apart(std::string_view function, const NamedBox& output, const NamedBox& other) {
  if (output.empty || other.empty || other.box.address == 0 || !share_byte(output, other)) return;
  fail<ShapeError>(function, output.name, " must share no element with ", other.name, ": got ", output.name, " ",
      shape_of(output.box), " and ", other.name, " ", shape_of(other.box), " in the same memory");
}

void check_outputs(std::string_view function, std::span<const NamedBox> outputs, std::span<const NamedBox> inputs) {
  for (const NamedBox& input : inputs) check_given(function, input);
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    if (outputs[n].empty) continue;
    check_written(function, outputs[n]);
    for (const NamedBox& input : inputs) check_apart(function, outputs[n], input);
    for (const NamedBox& earlier : outputs.first(n)) check_apart(function, outputs[n], earlier);
  }
}

}  // namespace qkv::inline v0
