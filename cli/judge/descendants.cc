#include "judge/descendants.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

/// A small file of /proc; empty when the process is gone.
std::string_view read_small(const char* path, std::span<char> buffer) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const auto count = ::read(file, buffer.data(), buffer.size());
  ::close(file);
  return {buffer.data(), static_cast<std::size_t>(std::max<std::ptrdiff_t>(count, 0))};
}

/// The fourth word of /proc/PID/stat. The second, a name in parentheses, may hold anything.
pid_t parent_of(const std::string& process) {
  std::array<char, 512> buffer;
  const std::string_view line = read_small(("/proc/" + process + "/stat").c_str(), buffer);
  const std::size_t close = line.rfind(')');
  pid_t parent = 0;
  if (close != std::string_view::npos && close + 4 < line.size())
    std::from_chars(line.data() + close + 4, line.data() + line.size(), parent);
  return parent;
}

std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (bad == std::errc() && rest == name.data() + name.size()) found[process] = parent_of(name);
  }
  return found;
}

std::vector<pid_t> descendants(pid_t but) {
  const std::map<pid_t, pid_t> all = parents();
  const pid_t self = ::getpid();
  std::vector<pid_t> found;
  for (const auto& [process, parent] : all) {
    pid_t above = process == but ? 0 : parent;
    for (std::size_t steps = 0; above != self && above != but && above > 1 && steps < all.size(); ++steps) {
      const auto next = all.find(above);
      above = next == all.end() ? 0 : next->second;
    }
    if (above == self && process != but) found.push_back(process);
  }
  return found;
}

void kill_and_reap(pid_t process) {
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, WNOHANG);
}

/// Orphans come here one by one; processes that fork and end faster than /proc is walked are caught by asking often.
void kill_children(pid_t but) {
  constexpr int kTimes = 50;
  const std::string path = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  std::array<char, 4096> buffer;
  for (int n = 0; n < kTimes; ++n) {
    const std::string_view all = read_small(path.c_str(), buffer);
    if (all.empty()) return;
    for (const char *at = all.data(), *end = at + all.size(); at < end; ++at) {
      pid_t process = 0;
      at = std::from_chars(at, end, process).ptr;
      if (process > 0 && process != but) kill_and_reap(process);
    }
  }
}

bool write_text(const char* path, const std::string& text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool done = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<std::ptrdiff_t>(text.size());
  if (file >= 0) ::close(file);
  return done;
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

void kill_descendants(pid_t but) {
  for (std::vector<pid_t> left = descendants(but); !left.empty(); left = descendants(but)) {
    for (const pid_t process : left) kill_and_reap(process);
    kill_children(but);
  }
}

bool begin_namespace() {
  if (::unshare(CLONE_NEWPID) == 0) return true;
  // Without the right to do so one may where users may have namespaces of their own.
  const std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", user + " " + user + " 1");
  write_text("/proc/self/gid_map", group + " " + group + " 1");
  return true;
}

}  // namespace qkv::cli
