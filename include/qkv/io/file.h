// Whole files: reads check the size, writes are atomic: a reader sees the old file or the new one, never a part.
// Not: formats (safetensors.h, npy.h), pipes and devices (refused: only a regular file has a size to check and a safe
// rename).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "qkv/export.h"

namespace qkv::inline v0::io {

/// The bytes of a regular file. Throws IoError (path and reason) when it cannot be read or becomes shorter during the
/// read.
QKV_API std::vector<std::byte> read_file(const std::filesystem::path& path);

/// Writes a temporary file in the same directory, fsyncs it and renames it to `path`. On any error it throws IoError,
/// leaves `path` unchanged and removes the temporary file. A symbolic link is followed, not replaced.
QKV_API void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
QKV_API void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Several outputs of one command: `add` writes each under a temporary name, `commit` renames them all. When anything
/// fails before `commit` has returned, every path is as it was before.
///
/// After a crash or SIGKILL: before `commit` every path as it was, and temporary files `.qkv-PID-N.tmp` beside
/// them. Inside `commit`, between two renames, some paths are new and the others old, each of them whole; the old
/// contents of the new ones lie beside them under such names, and so do the new contents of the others. The tool `qkv`
/// removes its temporary files on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE, unless they were ignored at its start,
/// and lets a `commit` that has begun finish first.
class QKV_API AtomicFiles {
 public:
  AtomicFiles();
  /// One that was moved from can be assigned to or destroyed, no more.
  AtomicFiles(AtomicFiles&&) noexcept;
  AtomicFiles& operator=(AtomicFiles&&) noexcept;
  /// Removes what was added and not committed.
  ~AtomicFiles();

  /// Throws IoError; OptionError when the same file was added before.
  void add(const std::filesystem::path& path, std::span<const std::byte> bytes);
  void add(const std::filesystem::path& path, std::string_view text);
  /// Throws IoError after undoing the renames already made.
  void commit();

 private:
  struct Stage;
  std::unique_ptr<Stage> stage_;
};

}  // namespace qkv::inline v0::io
