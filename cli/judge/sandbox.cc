#include "judge/sandbox.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "support/command.h"

namespace qkv::cli {

namespace fs = std::filesystem;

fs::path find_program(const std::string& name) {
  const auto runs = [](const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? fs::path(name) : fs::path();
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (fs::path found = fs::path(folder) / name; runs(found)) return found;
  }
  return {};
}

void require_sandbox() {
  if (find_program("bwrap").empty()) {
    throw UsageError(
        "--sandbox needs bubblewrap, which is not installed: apt-get install bubblewrap (Debian, Ubuntu), dnf install "
        "bubblewrap (Fedora)");
  }
}

std::vector<std::string> sandboxed(
    const std::vector<std::string>& words, const Scratch& scratch, const std::vector<fs::path>& needed) {
  std::vector<std::string> all = {"bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-net",
      "--unshare-pid", "--unshare-ipc", "--die-with-parent"};
  const fs::path temporary = fs::canonical(fs::temp_directory_path());
  all.insert(all.end(), {"--tmpfs", temporary.string()});
  for (const fs::path& path : needed) {
    const fs::path whole = fs::weakly_canonical(path);
    const bool hidden =
        std::mismatch(temporary.begin(), temporary.end(), whole.begin(), whole.end()).first == temporary.end();
    if (hidden && whole != temporary) all.insert(all.end(), {"--ro-bind", whole.string(), whole.string()});
  }
  const std::string own = fs::canonical(scratch.path()).string();
  // Folders that are mounts can neither be renamed nor become links.
  all.insert(all.end(), {"--ro-bind", own, own});
  for (const fs::path& path : {scratch.exchange(), scratch.temporary()}) {
    const std::string writable = fs::canonical(path).string();
    all.insert(all.end(), {"--bind", writable, writable});
  }
  all.push_back("--");
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace qkv::cli
