// safetensors: named tensors and string metadata <-> bytes. Every rule of the format is checked, and every length
// before it is used: a hostile file causes an exception, nothing worse. Not: sharded checkpoints (an index of several
// files), lazy reading, the 8-bit and smaller floats, complex numbers. Format: github.com/huggingface/safetensors,
// README.md and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/export.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0::io {

/// Entries keep the order of the header. Throws FormatError (with the byte offset) for a broken rule or a dtype that is
/// not read, IoError when the file cannot be read. Limits: a header of 100,000,000 bytes (the format's), 65,536 tensors
/// and 64 axes (ours).
QKV_API StateDict load_safetensors(const std::filesystem::path& path);
QKV_API StateDict parse_safetensors(std::span<const std::byte> bytes);

/// The header lists the tensors in the order of `state`; the data is sorted by element size, largest first, so that
/// each tensor is aligned. Throws OptionError for a name or metadata text that the format cannot hold, ShapeError when
/// a tensor's bytes and sizes disagree, UnsupportedError above the limits of reading.
QKV_API std::vector<std::byte> write_safetensors(const StateDict& state);
/// Atomic (file.h).
QKV_API void save_safetensors(const std::filesystem::path& path, const StateDict& state);

/// A tensor inside a file: its bytes begin `at` bytes after the start of the file, row-major.
struct QKV_API TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<Index> sizes;
  std::uint64_t at = 0;

  std::uint64_t bytes() const;  ///< all of it
};

/// A file whose header is read, and whose tensors are read in parts: a rank's share of what is too large for one.
class QKV_API SafetensorsParts {
 public:
  /// Throws as load_safetensors.
  explicit SafetensorsParts(const std::filesystem::path& path);
  ~SafetensorsParts();
  SafetensorsParts(SafetensorsParts&&) noexcept;
  SafetensorsParts& operator=(SafetensorsParts&&) noexcept;

  const std::vector<TensorEntry>& tensors() const;
  /// None: null.
  const TensorEntry* find(std::string_view name) const;
  /// Fills `out` with bytes from `from` on, counted within the tensor. Throws OptionError past its end, IoError.
  void read(const TensorEntry& tensor, std::uint64_t from, std::span<std::byte> out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A safetensors file without its data: the file's first bytes, where each tensor goes, and how long
/// it is.
struct SafetensorsPlan {
  std::vector<std::byte> head;
  std::vector<TensorEntry> tensors;  ///< as given, with `at`
  std::uint64_t bytes = 0;           ///< of the whole file
};
/// Throws as write_safetensors.
QKV_API SafetensorsPlan plan_safetensors(
    std::vector<TensorEntry> tensors, const std::map<std::string, std::string>& metadata = {});

}  // namespace qkv::inline v0::io
