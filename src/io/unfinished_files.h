// Names of the temporary files that exist now, for a program that is about to be killed by a signal: its handler can
// remove them, since destructors will not run.
#pragma once

#include <atomic>
#include <filesystem>

#include "qkv/export.h"

namespace qkv::inline v0 {

/// Holds a name from its construction to its destruction. Once kUnfinishedFiles are held, further names are not, and
/// their files remain after a signal.
class QKV_API UnfinishedFile {
 public:
  UnfinishedFile() = default;
  explicit UnfinishedFile(const std::filesystem::path& path);
  UnfinishedFile(UnfinishedFile&& other) noexcept;
  UnfinishedFile& operator=(UnfinishedFile&& other) noexcept;
  ~UnfinishedFile();

 private:
  std::atomic<char*>* slot_ = nullptr;
};

constexpr int kUnfinishedFiles = 64;

/// Removes all files whose names are held. Async-signal-safe: for a handler that ends the process next.
QKV_API void remove_unfinished_files() noexcept;

}  // namespace qkv::inline v0
