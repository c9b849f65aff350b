// Memory for test tensors in awkward layouts, with sentinels wherever no tensor lies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "qkv/tensor.h"
#include "qkv/view.h"
#include "support/index.h"
#include "support/random.h"

namespace qkv::test {

/// 16-bit types are stored; arithmetic is in float.
template <class T> constexpr bool kIsHalf = !std::is_same_v<T, Accumulator<T>>;
/// How far rounding to T moves a number, as a share of it; 0 for the types that sums have themselves.
template <class T> constexpr double kUnitRoundoff = std::is_same_v<T, BFloat16>  ? 0x1p-8
                                                    : std::is_same_v<T, Float16> ? 0x1p-11
                                                                                 : 0;
template <class T> constexpr double kLargestNumber =
    std::is_same_v<T, Float16> ? 65504 : static_cast<double>(std::numeric_limits<float>::max());

template <class To, class From> constexpr To number_as(From x) {
  if constexpr (kIsHalf<From>) {
    return number_as<To>(static_cast<float>(x));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <class T> constexpr T kQuietNan = number_as<T>(std::numeric_limits<float>::quiet_NaN());

enum class Layout {
  kBhtd,        ///< [B, H, T, D], contiguous
  kBthd,        ///< [B, T, H, D]: heads of a projection, not copied
  kPacked,      ///< q, k, v interleaved in one [B, T, 3, H, D]
  kMisaligned,  ///< [B, H, T, D] one element off alignment
  kPaddedRows   ///< [B, H, T, D] with five unused elements after each row
};

/// One line for each type that tests are instantiated for: QKV_TEST_TYPES(M) is M(float) M(double) ..
#define QKV_TEST_TYPES(M) M(float) M(double) M(BFloat16) M(Float16)

inline constexpr std::array kLayoutNames = {"bhtd", "bthd", "packed", "misaligned", "padded"};

/// One allocation that holds one tensor, or several interleaved ones. Everything starts as a NaN with a known pattern:
/// an input whose padding is read gives NaN, an output that is not written in full stays NaN, a write outside shows
/// in the bits.
template <class T> class Storage {
 public:
  using Sizes = typename View<T, 4>::Sizes;

  Storage() = default;
  explicit Storage(Index count);

  View<T, 4> view(const Sizes& sizes, const Sizes& strides, Index offset);

  /// Every element that no tensor covers still has the bits it started with.
  bool sentinels_intact() const;

  static constexpr Index kGuard = 24;  // elements before and after: more than a 64-byte vector

 private:
  static constexpr T kSentinel = kQuietNan<T>;

  template <class F> static void for_each_offset(const Sizes& sizes, const Sizes& strides, F&& visit) {
    for_each_index(sizes, [&](Index a, Index b, Index c, Index d) {
      visit(a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]);
    });
  }

  void fill();

  Tensor<T> data_;
  std::vector<bool> covered_;
};

/// One tensor [B, H, T, D] in its own storage. `kPacked` is laid out as kBthd here: only q, k, v are packed.
template <class T> struct Stored {
  Storage<T> storage;
  View<T, 4> view;

  Stored() = default;
  Stored(const typename View<T, 4>::Sizes& sizes, Layout layout);
};

/// Three tensors [B, H, T, D] interleaved as [B, T, 3, H, D].
template <class T> struct Packed {
  Storage<T> storage;
  std::array<View<T, 4>, 3> views;

  Packed() = default;
  explicit Packed(const typename View<T, 4>::Sizes& sizes);
};

/// q, k, v (or their gradients) in one layout.
template <class T> struct Triple {
  Packed<T> packed;
  std::array<Stored<T>, 3> stored;
  std::array<View<T, 4>, 3> views;  // q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]

  Triple() = default;
  Triple(const std::array<typename View<T, 4>::Sizes, 3>& sizes, Layout layout);

  bool sentinels_intact() const;
};

/// The same numbers in another type; empty stays empty.
template <class To, class From> Tensor<To> converted(const Tensor<From>& from) {
  if (from.rank() == 0) return {};
  Tensor<To> to(from.sizes());
  std::ranges::transform(from.span(), to.data(), [](From x) { return number_as<To>(x); });
  return to;
}
template <class From> Tensor<double> widened(const Tensor<From>& from) { return converted<double>(from); }

/// Numbers in [-1, 1).
template <class T = float> Tensor<T> random_tensor(std::vector<Index> sizes, std::uint64_t seed) {
  Tensor<T> tensor(std::move(sizes));
  Random random(seed);
  for (T& x : tensor.span()) x = number_as<T>(random.symmetric());
  return tensor;
}

/// The elements of a view as a contiguous tensor of another type.
template <class To, class From, int Rank> Tensor<To> copy_as(const View<From, Rank>& view) {
  Tensor<To> copy(std::vector<Index>(view.sizes().begin(), view.sizes().end()));
  if constexpr (Rank == 3) {
    const View<To, 3> to = copy;
    for_each_index(view.sizes(), [&](Index a, Index b, Index c) { to(a, b, c) = number_as<To>(view(a, b, c)); });
  } else {
    const View<To, 4> to = copy;
    for_each_index(
        view.sizes(), [&](Index a, Index b, Index c, Index d) { to(a, b, c, d) = number_as<To>(view(a, b, c, d)); });
  }
  return copy;
}

}  // namespace qkv::test
