// Element types known at run time: their names, sizes and conversions. f16 and bf16 are decoded exactly (both are
// subsets of f32).
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0 {
namespace {

static_assert(std::endian::native == std::endian::little, "AnyTensor holds little-endian bytes and is read in place");

// In the order of DType.
constexpr std::array<std::string_view, 13> kTypeNames = {
    "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "BF16", "F32", "F64"};
using Types = std::tuple<std::uint8_t, std::uint8_t, std::int8_t, std::int16_t, std::uint16_t, std::int32_t,
    std::uint32_t, std::int64_t, std::uint64_t, Float16, BFloat16, float, double>;
constexpr auto kAll = std::make_index_sequence<std::tuple_size_v<Types>>();
static_assert(static_cast<std::size_t>(DType::kF64) + 1 == kAll.size() && kTypeNames.size() == kAll.size());

template <std::size_t... n> constexpr std::array<std::size_t, sizeof...(n)> sizes_of(std::index_sequence<n...>) {
  return {sizeof(std::tuple_element_t<n, Types>)...};
}

// The type in which a stored element is processed; 16-bit floats become f32 without loss.
float widen(BFloat16 x) { return static_cast<float>(x); }
float widen(Float16 x) { return static_cast<float>(x); }

template <class T> T widen(T x) { return x; }

template <class Stored, class Out, class Convert>
void convert_all(const AnyTensor& tensor, Tensor<Out>& out, const Convert& convert) {
  for (std::size_t n = 0; n < static_cast<std::size_t>(out.count()); ++n) {
    Stored x;
    std::memcpy(&x, tensor.bytes.data() + n * sizeof(Stored), sizeof(Stored));
    out.data()[n] = convert(widen(x));
  }
}

template <class Out, class Convert>
Tensor<Out> converted(const AnyTensor& tensor, std::string_view function, const Convert& convert) {
  const Index count = checked_count(tensor.sizes);
  const std::size_t element_bytes = dtype_bytes(tensor.dtype);
  const bool whole = tensor.bytes.size() % element_bytes == 0 &&
                     tensor.bytes.size() / element_bytes == static_cast<std::size_t>(count);
  check<ShapeError>(whole, function, "the number of bytes must fit the sizes: got ", tensor.bytes.size(), " bytes for ",
      dtype_name(tensor.dtype), " ", tensor);
  Tensor<Out> out(tensor.sizes);
  [&]<std::size_t... n>(std::index_sequence<n...>) {
    ((static_cast<std::size_t>(tensor.dtype) == n ? convert_all<std::tuple_element_t<n, Types>>(tensor, out, convert)
                                                  : void()),
        ...);
  }(kAll);
  return out;
}

template <class T> std::int64_t whole_number(T x) {
  bool fits = true;
  if constexpr (std::is_floating_point_v<T>) {  // 2^63 is a double; the largest int64 is not: the upper end is compared
                                                // with <
    fits = static_cast<double>(x) >= -0x1p63 && static_cast<double>(x) < 0x1p63 && x == std::trunc(x);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    fits = x <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  }
  check<OptionError>(fits, "to_i64", "every value must be a whole number that fits in 64 bits: got ", x);
  return static_cast<std::int64_t>(x);
}

template <class T> AnyTensor erased(const Tensor<T>& tensor, DType dtype) {
  AnyTensor out;
  out.dtype = dtype;
  out.sizes = tensor.sizes();
  const auto bytes = std::as_bytes(tensor.span());
  out.bytes.assign(bytes.begin(), bytes.end());
  return out;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return kTypeNames[static_cast<std::size_t>(dtype)]; }
std::size_t dtype_bytes(DType dtype) {
  static constexpr auto kSizes = sizes_of(kAll);
  return kSizes[static_cast<std::size_t>(dtype)];
}

Tensor<float> to_f32(const AnyTensor& tensor) {
  return converted<float>(tensor, "to_f32", [](auto x) { return static_cast<float>(x); });
}

Tensor<double> to_f64(const AnyTensor& tensor) {
  return converted<double>(tensor, "to_f64", [](auto x) { return static_cast<double>(x); });
}

Tensor<std::uint8_t> to_bool(const AnyTensor& tensor) {
  return converted<std::uint8_t>(tensor, "to_bool", [](auto x) { return static_cast<std::uint8_t>(x != 0 ? 1 : 0); });
}

Tensor<std::int64_t> to_i64(const AnyTensor& tensor) {
  return converted<std::int64_t>(tensor, "to_i64", [](auto x) { return whole_number(x); });
}

AnyTensor any_tensor(const Tensor<float>& tensor) { return erased(tensor, DType::kF32); }
AnyTensor any_tensor(const Tensor<double>& tensor) { return erased(tensor, DType::kF64); }
AnyTensor any_tensor(const Tensor<std::uint8_t>& tensor) { return erased(tensor, DType::kU8); }
AnyTensor any_tensor(const Tensor<std::int64_t>& tensor) { return erased(tensor, DType::kI64); }

}  // namespace qkv::inline v0
