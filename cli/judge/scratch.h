// A folder of this command's own that is gone afterwards, however the command ends. Not: outputs (support/files.h).
#pragma once

#include <sys/types.h>

#include <filesystem>

namespace qkv::cli {

/// Made with mode 0700 where temporary files belong. A small process of its own waits for the end of this object, of
/// the tool (by whatever signal) and of every process that the tool still supervises, and then removes the folder.
class Scratch {
 public:
  /// IoError when there is no room for it.
  Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  const std::filesystem::path& path() const { return path_; }
  /// What the tool writes and code only reads; the tool writes nowhere that code in a sandbox does.
  std::filesystem::path given() const { return path_ / "given"; }
  std::filesystem::path exchange() const { return path_ / "exchange"; }  ///< what code writes and the tool only reads
  std::filesystem::path temporary() const { return path_ / "tmp"; }      ///< of the code alone: its TMPDIR
  pid_t janitor() const { return janitor_; }

 private:
  std::filesystem::path path_;
  pid_t janitor_ = -1;
  int lifeline_ = -1;  // the janitor waits until nobody holds it; supervisors inherit it, what they start does not
};

/// In a child process that goes on by itself: a session of its own, no terminal, none of the tool's standard streams;
/// Ctrl-C and hangups are not for it.
void leave_terminal();

}  // namespace qkv::cli
