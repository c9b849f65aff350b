// StateDict: named tensors in the order they came, as files and layers exchange them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// Element types that files can hold and qkv reads.
enum class DType { kBool, kU8, kI8, kI16, kU16, kI32, kU32, kI64, kU64, kF16, kBF16, kF32, kF64 };

QKV_API std::string_view dtype_name(DType dtype);  ///< "F32", as safetensors writes it
QKV_API std::size_t dtype_bytes(DType dtype);

/// A tensor whose element type is only known at run time. Contiguous, row-major, little-endian. Move-only.
struct AnyTensor {
  DType dtype = DType::kF32;
  std::vector<Index> sizes;
  std::vector<std::byte> bytes;

  AnyTensor() = default;
  AnyTensor(AnyTensor&&) noexcept = default;
  AnyTensor& operator=(AnyTensor&&) noexcept = default;
  AnyTensor clone() const {
    AnyTensor copy;
    copy.dtype = dtype;
    copy.sizes = sizes;
    copy.bytes = bytes;
    return copy;
  }

  std::string shape() const { return shape_text(sizes.data(), static_cast<int>(sizes.size())); }
};

/// Copies, converting every dtype (f16 and bf16 exactly; f64 and 64-bit integers rounded to nearest). ShapeError
/// where bytes and sizes disagree.
QKV_API Tensor<float> to_f32(const AnyTensor& tensor);
QKV_API Tensor<double> to_f64(const AnyTensor& tensor);
/// Non-zero -> 1. For Mask::keep and Mask::drop.
QKV_API Tensor<std::uint8_t> to_bool(const AnyTensor& tensor);
/// Integers are copied; a float must hold a whole number that fits. Throws OptionError otherwise.
QKV_API Tensor<std::int64_t> to_i64(const AnyTensor& tensor);

QKV_API AnyTensor any_tensor(const Tensor<float>& tensor);
QKV_API AnyTensor any_tensor(const Tensor<double>& tensor);
QKV_API AnyTensor any_tensor(const Tensor<std::uint8_t>& tensor);
QKV_API AnyTensor any_tensor(const Tensor<std::int64_t>& tensor);

class QKV_API StateDict {
 public:
  struct Entry {
    std::string name;
    AnyTensor tensor;
  };

  /// Throws OptionError when the name exists already.
  void add(std::string name, AnyTensor tensor);
  /// Null where there is none. Valid until the next add.
  const AnyTensor* find(std::string_view name) const;
  /// Throws OptionError that lists the existing names.
  const AnyTensor& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  StateDict clone() const;

  /// String -> string metadata stored with the tensors (safetensors __metadata__).
  std::map<std::string, std::string> metadata;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> slots_;  // of names in entries_
};

}  // namespace qkv::inline v0
