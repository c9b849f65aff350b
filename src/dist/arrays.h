// Arrays of numbers of any type: ranks send rows as bytes, and only what computes asks for the type (compute.cc).
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "qkv/attention.h"

namespace qkv::inline v0::dist {

enum class Type { kF32, kF64, kBF16, kF16 };

template <class T> constexpr Type type_of() {
  using E = std::remove_const_t<T>;
  if (std::is_same_v<E, float>) return Type::kF32;
  if (std::is_same_v<E, double>) return Type::kF64;
  return std::is_same_v<E, BFloat16> ? Type::kBF16 : Type::kF16;
}
/// body(a number of the type)
template <class Body> auto with_type(Type type, const Body& body) {
  switch (type) {
    case Type::kF32: return body(float{});
    case Type::kF64: return body(double{});
    case Type::kBF16: return body(BFloat16{});
    default: return body(Float16{});
  }
}
inline Type sum_type(Type type) { return type == Type::kF64 ? Type::kF64 : Type::kF32; }
inline Index bytes_of(Type type) { return type == Type::kF64 ? 8 : type == Type::kF32 ? 4 : 2; }
inline const char* name_of(Type type) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16"};
  return names[static_cast<int>(type)];
}

/// A view of [B, H, T, width], as View; [B, H, T] has width 1, fewer axes come last. Whoever makes one of a const view
/// writes nothing.
struct Array {
  Type type = Type::kF32;
  std::byte* data = nullptr;
  std::array<Index, 4> sizes{}, strides{};  // strides in numbers

  Array() = default;
  template <class E, int kRank> explicit Array(const View<E, kRank>& x)
      : type(type_of<E>()), data(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(x.data()))) {
    sizes.fill(1), strides.fill(1);
    std::ranges::copy(x.sizes(), sizes.begin() + first_axis<kRank>());
    std::ranges::copy(x.strides(), strides.begin() + first_axis<kRank>());
  }
  template <class E, int kRank> View<E, kRank> as() const {
    typename View<E, kRank>::Sizes s, t;
    std::copy_n(sizes.begin() + first_axis<kRank>(), kRank, s.begin());
    std::copy_n(strides.begin() + first_axis<kRank>(), kRank, t.begin());
    return {reinterpret_cast<E*>(data), s, t};
  }
  bool is_null() const { return data == nullptr && count() == 0; }
  Index count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  std::size_t bytes() const { return static_cast<std::size_t>(count() * bytes_of(type)); }
  /// Null stays null.
  Array sliced(std::size_t axis, Index begin, Index end) const {
    Array part = *this;
    if (is_null()) return part;
    if (data != nullptr) part.data += begin * strides[axis] * bytes_of(type);
    part.sizes[axis] = end - begin;
    return part;
  }

 private:
  template <int kRank> static constexpr int first_axis() { return kRank < 3 ? 4 - kRank : 0; }
};

/// Numbers one after the other.
inline Array packed(Type type, std::byte* data, const std::array<Index, 4>& sizes) {
  Array x(View<std::byte, 4>(data, sizes));
  x.type = type;
  return x;
}

/// An array of its own, of zeros.
struct Buffer {
  Tensor<std::byte> memory;
  Array view;

  Buffer() = default;
  Buffer(Type type, const std::array<Index, 4>& sizes)
      : memory({sizes[0] * sizes[1] * sizes[2] * sizes[3] * bytes_of(type)}),
        view(packed(type, memory.data(), sizes)) {}
};

/// to (+)= from, of the same sizes, added in the type of sums and rounded once. `from` need not be aligned.
void write(const Array& to, const Array& from, bool accumulate = false);

/// What backward writes, but for the type.
struct Gradients {
  Array dq, dk, dv, dbias, dsinks, dposition_bias, dk_sums, dv_sums, dlse;
  bool accumulate = false;

  Gradients() = default;
  template <class T> explicit Gradients(const AttentionGradients<T>& g)
      : dq(g.dq),
        dk(g.dk),
        dv(g.dv),
        dbias(g.dbias),
        dsinks(g.dsinks),
        dposition_bias(g.dposition_bias),
        dk_sums(g.dk_sums),
        dv_sums(g.dv_sums),
        dlse(g.dlse),
        accumulate(g.accumulate) {}
  template <class T> AttentionGradients<T> as() const {
    using Sum = Accumulator<T>;
    return {.dq = dq.as<T, 4>(),
        .dk = dk.as<T, 4>(),
        .dv = dv.as<T, 4>(),
        .dbias = dbias.as<Sum, 4>(),
        .dsinks = dsinks.as<Sum, 1>(),
        .dposition_bias = dposition_bias.as<Sum, 2>(),
        .dk_sums = dk_sums.as<Sum, 4>(),
        .dv_sums = dv_sums.as<Sum, 4>(),
        .dlse = dlse.as<const Sum, 3>(),
        .accumulate = accumulate};
  }
};

}  // namespace qkv::inline v0::dist
