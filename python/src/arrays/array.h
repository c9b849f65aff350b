// Array: what a Python object says about its memory, without a copy. Anything with the buffer protocol (NumPy, array,
// memoryview) or DLPack's C functions (PyTorch, 50 ns), or a tuple of an array of uint16 and "bfloat16", 16 bits that
// NumPy has no name for. Arrays: those of a call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "qkv/tensor.h"
#include "qkv/types.h"
#include "qkv/view.h"

namespace qkv::python {

enum class Type { kF32, kF64, kBF16, kF16, kByte, kInt32, kInt64, kOther };

/// NumPy's name: "float32".
const char* type_name(Type type);

template <class T> constexpr Type type_of() {
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

/// Holds the memory's owner until it is destroyed (with the interpreter's lock held).
class Array {
 public:
  /// A name that ends in "?": None is allowed, a null view. TypeError: not an array. ValueError: another device, more
  /// than kMaxRank axes.
  Array(const char* function, const char* name, nb::handle object);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  bool given() const { return data_ != nullptr; }
  Type type() const { return type_; }
  int rank() const { return rank_; }  ///< axes; 0 of None
  Index size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  const std::string& name() const { return name_; }
  /// NumPy's name of the element type, or what the library calls a type without one.
  std::string type_text() const { return type_ == Type::kOther ? foreign_type_ : type_name(type_); }

  /// As many axes as Rank, or fewer: those in front have size 1. TypeError: another element type. ValueError:
  /// read-only.
  template <class T, int Rank> View<const T, Rank> input() const { return view<const T, Rank>(type_of<T>()); }
  template <class T, int Rank> View<T, Rank> output() const {
    require_writable();
    return view<T, Rank>(type_of<T>());
  }
  /// Where a view is expected: input() if that is of const elements, otherwise output().
  template <class T, int Rank> operator View<T, Rank>() const {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_const_v<T>) {
      return input<std::remove_const_t<T>, Rank>();
    } else {
      return output<T, Rank>();
    }
  }

 private:
  template <class T, int Rank> View<T, Rank> view(Type wanted) const {
    if (!given()) return {};
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
  bool read_exchange(nb::handle object);
  void read_tensor(const nb::dlpack::dltensor& tensor);
  bool read_buffer(nb::handle object);

  const char* function_ = "";
  std::string name_;
  void* data_ = nullptr;
  Type type_ = Type::kOther;
  std::string foreign_type_;  // the name of a kOther type
  int rank_ = 0;
  bool writable_ = true;
  std::array<Index, kMaxRank> sizes_{}, strides_{};
  std::optional<Py_buffer> buffer_;
  nb::object owner_;
};

[[noreturn]] void throw_type_error(const char* function, const Array& array, const char* wanted);

/// body.template operator()<T>() with the element type of `array`: float or double, or one of the four that attention
/// computes.
template <class Body> void with_wide_type(const char* function, const Array& array, Body&& body) {
  switch (array.type()) {
    case Type::kF32: return body.template operator()<float>();
    case Type::kF64: return body.template operator()<double>();
    default: throw_type_error(function, array, "float32 or float64");
  }
}
template <class Body> void with_float_type(const char* function, const Array& array, Body&& body) {
  switch (array.type()) {
    case Type::kF32: return body.template operator()<float>();
    case Type::kF64: return body.template operator()<double>();
    case Type::kBF16: return body.template operator()<BFloat16>();
    case Type::kF16: return body.template operator()<Float16>();
    default: throw_type_error(function, array, "float32, float64, bfloat16 or float16");
  }
}

/// The arrays of a call: the names of their messages, and the objects in the same order.
template <std::size_t kCount> class Arrays {
 public:
  Arrays(const char* function, const char* const (&names)[kCount], const nb::args& objects)
      : Arrays(function, names, objects, std::make_index_sequence<kCount>{}) {}
  const Array& operator[](std::size_t n) const { return arrays_[n]; }

  /// body.template operator()<T>(context) with the first array's element type, one of four (wide: float or double),
  /// without the interpreter's lock.
  template <class Body> void compute(Body&& body) const {
    with_float_type(function_, arrays_[0], [&]<class T>() { run<T>(body); });
  }
  template <class Body> void compute_wide(Body&& body) const {
    with_wide_type(function_, arrays_[0], [&]<class T>() { run<T>(body); });
  }

 private:
  template <std::size_t... kNumbers> Arrays(const char* function, const char* const (&names)[kCount],
      const nb::args& objects, std::index_sequence<kNumbers...>)
      : function_(function), arrays_{Array(function, names[kNumbers], at(function, objects, kNumbers))...} {}
  static nb::handle at(const char* function, const nb::args& objects, std::size_t n) {
    if (objects.size() != kCount) throw nb::type_error((std::string(function) + ": wrong number of arrays").c_str());
    return objects[n];
  }
  template <class T, class Body> static void run(Body& body) {
    const Computation call;
    body.template operator()<T>(*call.context);
  }

  const char* function_;
  std::array<Array, kCount> arrays_;
};

/// A NumPy array that owns `memory`, which holds `data` of these sizes.
template <class T, class Memory> nb::object numpy_of(Memory&& memory, const std::vector<Index>& sizes) {
  auto* held = new Memory(std::forward<Memory>(memory));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Memory*>(p); });
  const std::vector<std::size_t> shape(sizes.begin(), sizes.end());
  return nb::cast(nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner));
}

/// Without a copy; None of a tensor that was never filled.
template <class T> nb::object to_numpy(Tensor<T>&& tensor) {
  if (tensor.data() == nullptr) return nb::none();
  const std::vector<Index> sizes = tensor.sizes();
  return numpy_of<T>(std::move(tensor), sizes);
}

}  // namespace qkv::python
