// Whole files: read with the size known and checked, written so that a reader sees all of it or none.
// Not: formats (safetensors.h, npy.h), pipes and devices (refused: a size is known and a rename is safe for regular files
// only).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "qkv/export.h"

namespace qkv {
inline namespace v0 {
namespace io {

/// The bytes of a regular file. Throws IoError (path and reason) when it cannot be read, or changes its size meanwhile.
QKV_API std::vector<std::byte> read_file(const std::filesystem::path& path);

/// Writes a temporary file in the same directory, fsyncs it and renames it to `path`. On any error IoError is thrown, what was
/// at `path` before is untouched and no temporary file stays. A symbolic link is followed, not replaced.
QKV_API void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
QKV_API void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Several outputs of one command: `add` writes each under a temporary name, `commit` renames them all. When anything fails
/// before `commit` has returned, every path is as it was before. (A crash of the machine inside `commit` can leave some
/// renamed.)
class QKV_API AtomicFiles {
 public:
  AtomicFiles();
  AtomicFiles(AtomicFiles&&) noexcept;
  AtomicFiles& operator=(AtomicFiles&&) noexcept;
  /// What was added and not committed disappears.
  ~AtomicFiles();

  /// Throws IoError; OptionError when the same file was added before.
  void add(const std::filesystem::path& path, std::span<const std::byte> bytes);
  void add(const std::filesystem::path& path, std::string_view text);
  /// Throws IoError after undoing the renames already made.
  void commit();

 private:
  class Stage;
  std::unique_ptr<Stage> stage_;
};

}  // namespace io
}  // namespace v0
}  // namespace qkv
