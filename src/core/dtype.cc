// Element types known at run time: their names, sizes and conversions. f16 and bf16 are decoded exactly (both are subsets of
// f32). Not: encoding to 16 bits, files (io/).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0 {
namespace {

static_assert(std::endian::native == std::endian::little, "AnyTensor holds little-endian bytes and is read in place");

struct DTypeFacts {
  std::string_view name;
  std::size_t bytes;
};

// In the order of DType.
constexpr std::array<DTypeFacts, 13> kFacts = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"I16", 2},
                                                {"U16", 2},
                                                {"I32", 4},
                                                {"U32", 4},
                                                {"I64", 8},
                                                {"U64", 8},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"F32", 4},
                                                {"F64", 8}}};
static_assert(static_cast<std::size_t>(DType::kF64) + 1 == kFacts.size());

const DTypeFacts& facts(DType dtype) { return kFacts[static_cast<std::size_t>(dtype)]; }

// The type in which a stored element is processed; 16-bit floats become f32 without loss.
float widen(BFloat16 x) { return static_cast<float>(x); }
float widen(Float16 x) { return static_cast<float>(x); }

template <class T>
T widen(T x) {
  return x;
}

template <class Out, class Stored, class Convert>
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
  const bool whole =
      tensor.bytes.size() % element_bytes == 0 && tensor.bytes.size() / element_bytes == static_cast<std::size_t>(count);
  check<ShapeError>(whole, function, "the number of bytes must fit the sizes: got ", tensor.bytes.size(), " bytes for ",
                    dtype_name(tensor.dtype), " ", tensor);
  Tensor<Out> out(tensor.sizes);
  switch (tensor.dtype) {
    case DType::kBool:
    case DType::kU8:
      convert_all<Out, std::uint8_t>(tensor, out, convert);
      break;
    case DType::kI8:
      convert_all<Out, std::int8_t>(tensor, out, convert);
      break;
    case DType::kI16:
      convert_all<Out, std::int16_t>(tensor, out, convert);
      break;
    case DType::kU16:
      convert_all<Out, std::uint16_t>(tensor, out, convert);
      break;
    case DType::kI32:
      convert_all<Out, std::int32_t>(tensor, out, convert);
      break;
    case DType::kU32:
      convert_all<Out, std::uint32_t>(tensor, out, convert);
      break;
    case DType::kI64:
      convert_all<Out, std::int64_t>(tensor, out, convert);
      break;
    case DType::kU64:
      convert_all<Out, std::uint64_t>(tensor, out, convert);
      break;
    case DType::kF16:
      convert_all<Out, Float16>(tensor, out, convert);
      break;
    case DType::kBF16:
      convert_all<Out, BFloat16>(tensor, out, convert);
      break;
    case DType::kF32:
      convert_all<Out, float>(tensor, out, convert);
      break;
    case DType::kF64:
      convert_all<Out, double>(tensor, out, convert);
      break;
  }
  return out;
}

std::int64_t whole_number(double x) {
  // 2^63 is a double; the largest int64 is not, so the upper end is compared with <.
  check<OptionError>(x >= -0x1p63 && x < 0x1p63 && x == std::trunc(x), "to_i64",
                     "every value must be a whole number that fits in 64 bits: got ", x);
  return static_cast<std::int64_t>(x);
}

std::int64_t whole_number(std::uint64_t x) {
  check<OptionError>(x <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()), "to_i64",
                     "every value must be a whole number that fits in 64 bits: got ", x);
  return static_cast<std::int64_t>(x);
}

template <class T>
AnyTensor erased(const Tensor<T>& tensor, DType dtype) {
  AnyTensor out;
  out.dtype = dtype;
  out.sizes = tensor.sizes();
  const auto bytes = std::as_bytes(tensor.span());
  out.bytes.assign(bytes.begin(), bytes.end());
  return out;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return facts(dtype).name; }
std::size_t dtype_bytes(DType dtype) { return facts(dtype).bytes; }

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
  return converted<std::int64_t>(tensor, "to_i64", [](auto x) {
    using X = decltype(x);
    if constexpr (std::is_floating_point_v<X>) {
      return whole_number(static_cast<double>(x));
    } else if constexpr (std::is_same_v<X, std::uint64_t>) {
      return whole_number(x);
    } else {
      return static_cast<std::int64_t>(x);
    }
  });
}

AnyTensor any_tensor(const Tensor<float>& tensor) { return erased(tensor, DType::kF32); }
AnyTensor any_tensor(const Tensor<double>& tensor) { return erased(tensor, DType::kF64); }
AnyTensor any_tensor(const Tensor<std::uint8_t>& tensor) { return erased(tensor, DType::kU8); }
AnyTensor any_tensor(const Tensor<std::int64_t>& tensor) { return erased(tensor, DType::kI64); }

}  // namespace qkv::inline v0
