// Regular files of the operating system: read at an offset, written whole or not at all. qkv/io/file.h exposes this and
// qkv::view uses it. Not: formats, pipes, devices. POSIX only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/unfinished_files.h"
#include "qkv/export.h"

namespace qkv::inline v0 {

/// A regular file opened for reading. Its size is read once; a file that turns out to be shorter is an IoError.
class QKV_API FileReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  std::uint64_t size() const { return size_; }
  /// Fills `out` with the bytes from `offset` on. Throws IoError.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Several files that appear together or not at all. See qkv::io::AtomicFiles, which is its public face.
class QKV_API FileStage {
 public:
  FileStage() = default;
  FileStage(const FileStage&) = delete;
  FileStage& operator=(const FileStage&) = delete;
  ~FileStage();

  void add(const std::filesystem::path& path, std::span<const std::byte> bytes);
  void commit();

 private:
  struct Staged {
    std::filesystem::path target;
    std::filesystem::path temporary;
    std::filesystem::path backup;  ///< a second name of the old file while commit runs; empty when there was none
    bool renamed = false;
    UnfinishedFile unfinished;  ///< the temporary one, for a signal
  };

  static int keep_old(Staged& entry);
  void undo() noexcept;
  [[noreturn]] void undo_and_refuse(std::filesystem::path target, int error);

  std::vector<Staged> staged_;
};

/// Temporary name in the same directory, fsync, rename. Throws IoError and leaves everything as it was.
QKV_API void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
QKV_API void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace qkv::inline v0
