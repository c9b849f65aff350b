#include "support/files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "qkv/io/npy.h"
#include "qkv/io/safetensors.h"
#include "support/signals.h"

namespace qkv::cli {
namespace {

template <class Load> auto loaded(std::string_view option, const std::string& path, Load load) {
  if (path.empty()) throw UsageError(std::string(option) + " needs the name of a file");
  return about_file(option, path, load);
}

}  // namespace

AnyTensor load_npy(std::string_view option, const std::string& path) {
  return loaded(option, path, [&] { return io::load_npy(path); });
}

StateDict load_safetensors(std::string_view option, const std::string& path) {
  return loaded(option, path, [&] { return io::load_safetensors(path); });
}

std::string load_text(std::string_view option, const std::string& path) {
  const std::vector<std::byte> bytes = loaded(option, path, [&] { return io::read_file(path); });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void require_file(const std::string& what, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) return;
  const char* const why = fs::is_directory(status) ? "is a directory" : "is not a regular file";
  throw UsageError(what + escaped(path) + ": " + (fs::exists(status) ? why : "no such file"));
}

std::string ending(const std::string& path) {
  std::string result = std::filesystem::path(path).extension().string();
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

void Outputs::protect(const std::string& path) {
  std::error_code error;
  if (!path.empty()) inputs_.push_back(std::filesystem::weakly_canonical(std::filesystem::absolute(path), error));
}

void Outputs::expect(std::string_view option, const std::string& path, const std::vector<std::string>& endings) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(std::string(option) + " " + escaped(path) + ": " + why);
  };
  std::error_code error;
  const fs::path target = fs::weakly_canonical(fs::absolute(path), error);
  if (error) refuse("cannot be written: " + error.message());
  if (std::ranges::find(inputs_, target) != inputs_.end())
    refuse("is an input, which it would replace: choose another name");
  if (!endings.empty() && std::ranges::find(endings, ending(path)) == endings.end())
    refuse(fmt::format("the name must end in {}", fmt::join(endings, " or ")));
  if (std::ranges::find(expected_, target) != expected_.end()) refuse("another output has this name: choose two names");
  if (fs::is_symlink(path, error) && !fs::exists(path, error))
    refuse("is a link that leads nowhere: remove it or name another");
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) refuse("is a directory: name a file in it");
  if (fs::exists(status) && !fs::is_regular_file(status)) refuse("is not a regular file: name one");
  if (fs::exists(status) && ::access(target.c_str(), W_OK) != 0) refuse("is read-only: choose another name");
  const fs::path folder = target.parent_path();
  if (!fs::is_directory(folder, error)) refuse("the folder does not exist: create it first");
  if (::access(folder.c_str(), W_OK) != 0) refuse("the folder cannot be written: choose another");
  expected_.push_back(target);
}

void Outputs::commit() {
  const SignalsHeld held;
  files_.commit();
}

void Outputs::add_npy(const std::string& path, const AnyTensor& tensor) { add(path, io::write_npy(tensor)); }

void Outputs::add_safetensors(const std::string& path, const StateDict& state) {
  add(path, io::write_safetensors(state));
}

}  // namespace qkv::cli
