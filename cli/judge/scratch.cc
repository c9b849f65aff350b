#include "judge/scratch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/escape.h"
#include "qkv/error.h"
#include "support/signals.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

/// Folders whose permissions were taken away are given them back first.
void remove_folder(const fs::path& path) noexcept {
  std::error_code error;
  for (int attempt = 0; attempt < 3; ++attempt) {
    fs::remove_all(path, error);
    if (!fs::exists(path, error)) return;
    fs::permissions(path, fs::perms::owner_all, fs::perm_options::add, error);
    auto entry = fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, error);
    for (; !error && entry != fs::end(entry); entry.increment(error)) {
      std::error_code ignored;
      if (fs::is_directory(entry->symlink_status(ignored)))
        fs::permissions(entry->path(), fs::perms::owner_all, fs::perm_options::add, ignored);
    }
  }
}

[[noreturn]] void wait_and_remove(int lifeline, const fs::path& path) noexcept {
  leave_terminal();
  char byte = 0;
  while (::read(lifeline, &byte, 1) != 0 && (errno == EINTR || errno == 0)) {
  }
  remove_folder(path);
  ::_exit(0);
}

}  // namespace

void leave_terminal() {
  ::setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, stream);
  if (nothing > STDERR_FILENO) ::close(nothing);
}

Scratch::Scratch() {
  const SignalsHeld held;
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  std::string name = (folder / "qkv-judge-XXXXXX").string();
  if (error || ::mkdtemp(name.data()) == nullptr) {
    const std::string reason = error ? error.message() : std::system_category().message(errno);
    throw IoError(
        "no folder for temporary files could be made in " + escaped(folder.string()) + " (set TMPDIR): " + reason);
  }
  path_ = name;
  for (const fs::path& own : {given(), exchange(), temporary()}) ::mkdir(own.c_str(), 0700);
  int ends[2] = {-1, -1};
  janitor_ = ::pipe2(ends, O_CLOEXEC) == 0 ? ::fork() : -1;
  if (janitor_ == 0) {
    ::close(ends[1]);
    wait_and_remove(ends[0], path_);
  }
  if (janitor_ < 0) {
    const int number = errno;
    for (const int end : ends) ::close(end);
    remove_folder(path_);
    throw IoError("no process could be started: " + std::system_category().message(number));
  }
  ::close(ends[0]);
  lifeline_ = ends[1];
}

Scratch::~Scratch() {
  ::close(lifeline_);
  while (::waitpid(janitor_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace qkv::cli
