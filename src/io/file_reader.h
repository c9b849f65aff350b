// A regular file, read at an offset. POSIX only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace qkv::inline v0::io {

/// Its size is read once; a file that turns out to be shorter is an IoError.
class FileReader {
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

}  // namespace qkv::inline v0::io
