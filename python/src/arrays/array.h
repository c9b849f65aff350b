// Array: what a Python object says about its memory, without a copy. Anything with the buffer protocol (NumPy, array,
// memoryview) or DLPack (PyTorch, JAX, CuPy; by its C functions where the type offers them, 50 ns), or a tuple that the Python
// layer made:
//   (address, "bfloat16", sizes, strides, owner)      strides in elements; owner keeps the memory alive
//   (array of uint16, "bfloat16")              16 bits that NumPy has no name for
// Not: allocation, broadcasting, conversion.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <optional>
#include <string>

#include "qkv/types.h"
#include "qkv/view.h"

namespace qkv::python {

namespace nb = nanobind;

enum class Type { kF32, kF64, kBF16, kF16, kByte, kInt32, kInt64, kOther };

/// NumPy's name: "float32".
const char* type_name(Type type);
/// Throws TypeError for an unknown name.
Type parse_type(const char* function, nb::handle name);

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, float>) return Type::kF32;
  if constexpr (std::is_same_v<T, double>) return Type::kF64;
  if constexpr (std::is_same_v<T, BFloat16>) return Type::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return Type::kF16;
  if constexpr (std::is_same_v<T, std::uint8_t>) return Type::kByte;
  if constexpr (std::is_same_v<T, std::int32_t>) return Type::kInt32;
  if constexpr (std::is_same_v<T, Index>) return Type::kInt64;
  return Type::kOther;
}

constexpr int kMaxRank = 8;

/// Move-only: holds the memory's owner until it dies (with the interpreter's lock held).
class Array {
 public:
  Array() = default;
  /// TypeError: not an array. ValueError: another device, more than kMaxRank axes.
  Array(const char* function, const char* name, nb::handle object);
  ~Array();
  Array(Array&& other) noexcept;
  Array& operator=(Array&&) = delete;

  Type type() const { return type_; }
  int rank() const { return rank_; }
  Index size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  const std::string& name() const { return name_; }
  /// NumPy's name of the element type, or what the library calls a type without one.
  std::string type_text() const { return type_ == Type::kOther ? foreign_type_ : type_name(type_); }

  /// As many axes as Rank, or fewer: those in front have size 1. TypeError: another element type. ValueError: read-only.
  template <class T, int Rank>
  View<const T, Rank> input() const {
    return view<const T, Rank>(type_of<T>());
  }
  template <class T, int Rank>
  View<T, Rank> output() const {
    require_writable();
    return view<T, Rank>(type_of<T>());
  }
  /// Where a view is expected: input() if that is of const elements, otherwise output().
  template <class T, int Rank>
  operator View<T, Rank>() const {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_const_v<T>) {
      return input<std::remove_const_t<T>, Rank>();
    } else {
      return output<T, Rank>();
    }
  }

 private:
  template <class T, int Rank>
  View<T, Rank> view(Type wanted) const {
    require(wanted, Rank);
    typename View<T, Rank>::Sizes sizes, strides;
    for (int axis = 0; axis < Rank; ++axis) {
      const int own = axis - (Rank - rank_);
      const auto at = static_cast<std::size_t>(axis);
      sizes[at] = own < 0 ? 1 : sizes_[static_cast<std::size_t>(own)];
      strides[at] = own < 0 ? 1 : strides_[static_cast<std::size_t>(own)];
    }
    return {static_cast<T*>(data_), sizes, strides};
  }
  void require(Type wanted, int rank) const;
  void require_writable() const;
  bool read_tuple(nb::handle object);
  bool read_exchange(nb::handle object);
  void take(const nb::dlpack::dltensor& tensor);
  bool read_buffer(nb::handle object);
  bool read_dlpack(nb::handle object);

  const char* function_ = "";
  std::string name_;
  void* data_ = nullptr;
  Type type_ = Type::kOther;
  std::string foreign_type_;  // the name of a kOther type
  int rank_ = 0;
  bool writable_ = true;
  std::array<Index, kMaxRank> sizes_{}, strides_{};
  std::optional<Py_buffer> buffer_;
  std::optional<nb::ndarray<nb::ro>> dlpack_;
  nb::object owner_;
};

/// An Array, or None: a null view.
class OptionalArray {
 public:
  OptionalArray(const char* function, const char* name, nb::handle object) {
    if (!object.is_none()) array_.emplace(function, name, object);
  }
  /// Axes; 0 of None.
  int rank() const { return array_ ? array_->rank() : 0; }
  template <class T, int Rank>
  operator View<T, Rank>() const {  // NOLINT(google-explicit-constructor)
    return array_ ? View<T, Rank>(*array_) : View<T, Rank>();
  }

 private:
  std::optional<Array> array_;
};

[[noreturn]] void throw_type_error(const char* function, const Array& array, const char* wanted);

/// body.template operator()<T>() with the element type of `array`: float or double, or one of the four that attention computes.
template <class Body>
void with_wide_type(const char* function, const Array& array, Body&& body) {
  switch (array.type()) {
    case Type::kF32:
      return body.template operator()<float>();
    case Type::kF64:
      return body.template operator()<double>();
    default:
      throw_type_error(function, array, "float32 or float64");
  }
}
template <class Body>
void with_float_type(const char* function, const Array& array, Body&& body) {
  switch (array.type()) {
    case Type::kF32:
      return body.template operator()<float>();
    case Type::kF64:
      return body.template operator()<double>();
    case Type::kBF16:
      return body.template operator()<BFloat16>();
    case Type::kF16:
      return body.template operator()<Float16>();
    default:
      throw_type_error(function, array, "float32, float64, bfloat16 or float16");
  }
}

}  // namespace qkv::python
