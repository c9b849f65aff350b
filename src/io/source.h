// Where a parser's bytes come from (memory or a file), and two checks that both formats share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/escape.h"
#include "io/file_reader.h"
#include "qkv/error.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0::io {

/// More axes than any tensor has, and few enough to bound the work of a hostile shape.
inline constexpr std::size_t kMaxAxes = 64;
/// 2^53: the largest integer that every JSON reader holds exactly.
inline constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 53;

/// Bytes of known number, read in pieces so that a large file is in memory only once.
class Source {
 public:
  Source(std::string_view function, std::span<const std::byte> bytes)
      : prefix_("[" + std::string(function) + "] "), bytes_(bytes), size_(bytes.size()) {}
  Source(std::string_view function, const std::filesystem::path& path)
      : prefix_("[" + std::string(function) + "] " + escaped(path.native()) + ": "),
        file_(std::in_place, path),
        size_(file_->size()) {}

  std::uint64_t size() const { return size_; }

  /// `count` bytes from `offset`; the caller has checked both against size().
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t count) const {
    std::vector<std::byte> out(count);
    read_into(offset, out);
    return out;
  }
  void read_into(std::uint64_t offset, std::span<std::byte> out) const {
    if (file_) {
      file_->read_at(offset, out);
    } else {
      std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    }
  }
  std::string read_text(std::uint64_t offset, std::uint64_t count) const {
    const std::vector<std::byte> bytes = read(offset, count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  [[noreturn]] void refuse(std::uint64_t offset, const std::string& text) const {
    throw FormatError(prefix_ + text, offset);
  }
  /// `text`: a text, or a function that makes one where it is needed: a header may ask this a million times.
  template <class Text> void check(bool holds, std::uint64_t offset, const Text& text) const {
    if (holds) return;
    if constexpr (std::is_invocable_v<Text>) {
      refuse(offset, text());
    } else {
      refuse(offset, text);
    }
  }

 private:
  std::string prefix_;
  std::span<const std::byte> bytes_{};
  std::optional<FileReader> file_{};
  std::uint64_t size_;
};

/// The little-endian unsigned number in `bytes`.
inline std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = (value << 8) | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

/// What a tensor must be whose bytes checked_bytes does not count.
inline constexpr const char* kCountable =
    "size in bytes must fit in 63 bits, beside an axis of 0 in 32: got a larger shape";

/// Bytes of a tensor; none when they exceed 2^63. Beside an axis of 0 those of the others must fit in 32 bits: a few
/// bytes of a file could otherwise ask a reader to walk 2^53 empty rows.
inline std::optional<std::uint64_t> checked_bytes(std::span<const Index> sizes, std::size_t element_bytes) {
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  const std::uint64_t most =
      empty ? std::numeric_limits<std::uint32_t>::max() : static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  std::uint64_t product = element_bytes;
  for (const Index size : sizes) {
    if (size == 0) continue;
    if (size < 0 || product > most / static_cast<std::uint64_t>(size)) return std::nullopt;
    product *= static_cast<std::uint64_t>(size);
  }
  return empty ? 0 : product;
}

/// For writers. Throws ShapeError when sizes and bytes disagree.
inline void check_tensor(std::string_view function, const std::string& name, const AnyTensor& tensor) {
  const std::optional<std::uint64_t> wanted = checked_bytes(tensor.sizes, dtype_bytes(tensor.dtype));
  if (wanted != tensor.bytes.size() || tensor.sizes.size() > kMaxAxes) {
    throw ShapeError("[" + std::string(function) + "] bytes of " + name + " must be sizes x element: got " +
                     std::to_string(tensor.bytes.size()) + " bytes for " + tensor.shape() + " of " +
                     std::string(dtype_name(tensor.dtype)));
  }
}

}  // namespace qkv::inline v0::io
