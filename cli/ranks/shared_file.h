// One output file that all ranks write, each its own bytes, on a file system that all see. It appears whole or not at
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "io/unfinished_files.h"
#include "ranks/ranks.h"

namespace qkv::cli {

class SharedFile {
 public:
  /// Collective. The first rank creates a temporary file of `bytes` beside `path`; every rank opens it. Throws IoError.
  SharedFile(const Ranks& ranks, const std::string& path, std::uint64_t bytes);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  /// Removes the temporary file, if it is still there: any rank that ends early does.
  ~SharedFile();

  void write(std::uint64_t at, std::span<const std::byte> bytes) const;
  /// Collective: when all bytes of all ranks are on the disk, the first rank renames.
  void commit();

 private:
  /// Whole from here on: what the other constructor throws, the destructor cleans up after.
  SharedFile(const Ranks& ranks, std::filesystem::path target) : ranks_(ranks), target_(std::move(target)) {}

  const Ranks& ranks_;
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
  UnfinishedFile unfinished_;
};

}  // namespace qkv::cli
