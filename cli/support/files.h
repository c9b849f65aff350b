// Files in and out, as commands need them: inputs that say which option named them, outputs that appear together or not
// at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/escape.h"
#include "qkv/error.h"
#include "qkv/io/file.h"
#include "qkv/state_dict.h"
#include "support/command.h"

namespace qkv::cli {

/// UsageError that names the option, the file and the reason when it cannot be read or breaks its format.
AnyTensor load_npy(std::string_view option, const std::string& path);
StateDict load_safetensors(std::string_view option, const std::string& path);
std::string load_text(std::string_view option, const std::string& path);
/// UsageError that begins with `what` and the path where there is none, a directory or a device.
void require_file(const std::string& what, const std::string& path);

/// Runs `work` on what an option said: an error of the library becomes a UsageError that begins with `what`.
template <class ErrorType = Error, class Work> auto about(const std::string& what, Work work) {
  try {
    return work();
  } catch (const ErrorType& error) {
    throw UsageError(what + ": " + error.what());
  }
}
template <class ErrorType = Error, class Work>
auto about_file(std::string_view option, const std::string& path, Work work) {
  return about<ErrorType>(std::string(option) + " " + escaped(path), work);
}

/// ".npy" of "a/b.npy", in lower case.
std::string ending(const std::string& path);

/// The outputs of one command. Name each before the work begins; give their bytes when it is done; commit.
class Outputs {
 public:
  /// An input, which no output may replace. Empty: none.
  void protect(const std::string& path);
  /// UsageError when the path cannot be written, is an input, was named before, or (with `endings`) ends otherwise.
  /// Empty: not wanted.
  void expect(std::string_view option, const std::string& path, const std::vector<std::string>& endings = {});

  void add(const std::string& path, std::string_view text) { files_.add(path, text); }
  void add(const std::string& path, const std::vector<std::byte>& bytes) { files_.add(path, bytes); }
  void add_npy(const std::string& path, const AnyTensor& tensor);
  void add_safetensors(const std::string& path, const StateDict& state);
  /// All of them, or none: IoError.
  void commit();

 private:
  std::vector<std::filesystem::path> inputs_, expected_;
  io::AtomicFiles files_;
};

}  // namespace qkv::cli
