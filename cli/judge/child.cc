#include "judge/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "judge/descendants.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

constexpr double kPatience = 3;      // seconds after which a supervisor that does not do its work is given up
constexpr std::size_t kLine = 4096;  // bytes of a line of the channel
constexpr int kChannelIn = 3, kChannelOut = 4, kAboveChannel = 10;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError("no pipe could be made: " + std::system_category().message(errno));
    // Above the numbers that the command's channel takes.
    read = ::fcntl(ends[0], F_DUPFD_CLOEXEC, kAboveChannel);
    write = ::fcntl(ends[1], F_DUPFD_CLOEXEC, kAboveChannel);
    for (const int end : ends) ::close(end);
  }
};

void set_limit(int what, std::uint64_t most) {
  struct rlimit limit {};
  ::getrlimit(what, &limit);
  limit.rlim_cur = limit.rlim_max = std::min<rlim_t>(most, limit.rlim_max);
  ::setrlimit(what, &limit);
}

/// Nothing that the tool has open, or was started with, reaches the command: each descriptor ends with exec.
void close_at_exec() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    int descriptor = 0;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (descriptor > STDERR_FILENO) ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
}

/// Between fork and exec.
[[noreturn]] void become(
    const ChildCommand& command, const Scratch& scratch, const Pipe& in, const Pipe& out, int failed) {
  const pid_t supervisor = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  ::setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGCHLD}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const char* name :
      {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "QKV_THREADS"})
    ::setenv(name, "1", 1);
  ::setenv("TMPDIR", scratch.temporary().c_str(), 1);
  bool ready = ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO) >= 0 &&
               ::dup2(command.out.descriptor(), STDOUT_FILENO) >= 0 &&
               ::dup2(command.err.descriptor(), STDERR_FILENO) >= 0;
  close_at_exec();
  if (command.channel) ready = ready && ::dup2(in.read, kChannelIn) >= 0 && ::dup2(out.write, kChannelOut) >= 0;
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_CPU, static_cast<std::uint64_t>(std::ceil(command.limits.seconds)) + 1);
  set_limit(RLIMIT_FSIZE, command.limits.file);
  set_limit(RLIMIT_AS, command.limits.memory);
  if (ready && ::getppid() == supervisor) {
    std::vector<char*> words;
    for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
  }
  const int number = errno;
  [[maybe_unused]] const auto written = ::write(failed, &number, sizeof number);
  ::_exit(127);
}

ChildEnd ended_with(int status) {
  if (WIFSIGNALED(status)) return {.how = ChildEnd::How::kSignal, .number = WTERMSIG(status)};
  return {.how = ChildEnd::How::kExited, .number = WEXITSTATUS(status)};
}

/// Process 1 of a PID namespace: starts the command, writes down its status, and takes everything with it when it ends.
[[noreturn]] void be_first(
    const ChildCommand& command, const Scratch& scratch, const Pipe& in, const Pipe& out, int failed, int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const pid_t child = ::fork();
  if (child == 0) become(command, scratch, in, out, failed);
  for (const int end : {in.read, in.write, out.read, out.write, failed}) ::close(end);
  int status = 0;
  for (pid_t ended = 0; child > 0 && ended != child;) ended = ::wait(&status);
  [[maybe_unused]] const auto written = ::write(told, &status, sizeof status);
  ::_exit(0);
}

/// Waits for the command, its time, or the end of the tool (of `lifeline`).
ChildEnd watch(pid_t command, int lifeline, int child_signals, double deadline) {
  for (;;) {
    int status = 0;
    for (pid_t ended; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended == command) return ended_with(status);
    }
    const double left = deadline - now();
    if (left <= 0) return {.how = ChildEnd::How::kOutOfTime};
    pollfd events[] = {{child_signals, POLLIN, 0}, {lifeline, POLLIN, 0}};
    ::poll(events, 2, static_cast<int>(std::min(left * 1000 + 1, 1e8)));
    if (events[1].revents != 0) return {};
    if (events[0].revents != 0) {
      signalfd_siginfo information;
      [[maybe_unused]] const auto taken = ::read(child_signals, &information, sizeof information);
    }
  }
}

[[noreturn]] void supervise(
    const ChildCommand& command, const Scratch& scratch, const Pipe& in, const Pipe& out, int lifeline, int report) {
  leave_terminal();
  adopt_orphans();
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  ::signal(SIGCHLD, SIG_DFL);
  ::sigprocmask(SIG_BLOCK, &children, nullptr);
  const int child_signals = ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  const Pipe failed, told;
  const bool isolated = command.own_namespace && begin_namespace();
  const double start = now();
  const pid_t child = ::fork();
  if (child == 0 && isolated) be_first(command, scratch, in, out, failed.write, told.write);
  if (child == 0) become(command, scratch, in, out, failed.write);
  const int reason = errno;
  for (const int end : {in.read, in.write, out.read, out.write, failed.write, told.write}) ::close(end);
  ChildEnd end{.how = ChildEnd::How::kNotStarted, .number = reason};
  if (child > 0) {
    end = watch(child, lifeline, child_signals, start + command.limits.seconds);
    ::kill(-child, SIGKILL);
    kill_descendants();
    int number = 0;
    if (isolated && end.success() && ::read(told.read, &number, sizeof number) == sizeof number)
      end = ended_with(number);
    if (::read(failed.read, &number, sizeof number) == sizeof number)
      end = {.how = ChildEnd::How::kNotStarted, .number = number};
  }
  end.seconds = now() - start;
  [[maybe_unused]] const auto written = ::write(report, &end, sizeof end);
  ::_exit(0);
}

}  // namespace

std::string ChildEnd::text(const Limits& limits) const {
  std::string out_of_time = fmt::format("it did not end within {:g} s (--time-limit)", limits.seconds);
  switch (how) {
    case How::kExited: return fmt::format("it ended with exit code {}", number);
    case How::kSignal:
      if (number == SIGXCPU) return out_of_time;
      if (number == SIGXFSZ) return fmt::format("it wrote a file of more than {} MiB", limits.file >> 20);
      return fmt::format("it was ended by signal {} ({})", number, ::strsignal(number));
    case How::kOutOfTime: return out_of_time;
    case How::kNotStarted: return "it could not be started: " + std::system_category().message(number);
    case How::kLost: break;
  }
  return "it ended the process that watched over it";
}

Output::Output(const Scratch& scratch) {
  std::string name = (scratch.path() / "output-XXXXXX").string();
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  const int reason = errno;
  descriptor_ = file < 0 ? -1 : ::fcntl(file, F_DUPFD_CLOEXEC, kAboveChannel);
  ::close(file);
  ::unlink(name.c_str());
  if (descriptor_ < 0) throw IoError("no temporary file could be made: " + std::system_category().message(reason));
}

Output::~Output() { ::close(descriptor_); }

std::string Output::last_lines(std::size_t count) const {
  constexpr off_t kMost = 4096;
  struct stat status {};
  ::fstat(descriptor_, &status);
  std::string text(static_cast<std::size_t>(std::min(status.st_size, kMost)), '\0');
  const ssize_t got = ::pread(descriptor_, text.data(), text.size(), std::max<off_t>(status.st_size - kMost, 0));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (text.ends_with('\n')) text.pop_back();
  std::size_t at = text.size();
  for (std::size_t n = 0; n < count && at != std::string::npos && at != 0; ++n) at = text.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? text : text.substr(at + 1);
}

Child::Child(const ChildCommand& command, const Scratch& scratch)
    : limits_(command.limits), janitor_(scratch.janitor()) {
  adopt_orphans();
  const Pipe lifeline, report, in, out;
  started_ = now();
  supervisor_ = ::fork();
  if (supervisor_ == 0) {
    for (const int end : {lifeline.write, report.read}) ::close(end);
    supervise(command, scratch, in, out, lifeline.read, report.write);
  }
  const int reason = errno;
  for (const int end : {lifeline.read, report.write, in.read, out.write}) ::close(end);
  lifeline_ = lifeline.write, report_ = report.read, to_ = in.write, from_ = out.read;
  if (supervisor_ < 0) throw IoError("no process could be started: " + std::system_category().message(reason));
}

Child::~Child() {
  if (supervisor_ > 0) {
    ::close(lifeline_);
    lifeline_ = -1;
    end();
  }
  for (const int end : {lifeline_, report_, to_, from_}) {
    if (end >= 0) ::close(end);
  }
}

bool Child::readable(int descriptor) const {
  pollfd event{descriptor, POLLIN, 0};
  for (;;) {
    const double left = lifeline_ < 0 ? kPatience : started_ + limits_.seconds + kPatience - now();
    if (left <= 0) return false;
    const int ready = ::poll(&event, 1, static_cast<int>(std::min(left * 1000 + 1, 1e8)));
    if (ready > 0) return true;
    if (ready == 0 && lifeline_ < 0) return false;
  }
}

std::optional<std::string> Child::line() {
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string found = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return found;
    }
    if (unread_.size() > kLine || !readable(from_)) return {};
    char bytes[512];
    const auto count = ::read(from_, bytes, sizeof bytes);
    if (count == 0 || (count < 0 && errno != EINTR)) return {};
    if (count > 0) unread_.append(bytes, static_cast<std::size_t>(count));
  }
}

void Child::say(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  const auto before = ::signal(SIGPIPE, SIG_IGN);  // nobody may be reading any more
  [[maybe_unused]] const auto written = ::write(to_, text.data(), text.size());
  ::signal(SIGPIPE, before);
}

ChildEnd Child::end() {
  ChildEnd end;
  if (supervisor_ < 0) return end;
  const bool told = readable(report_) && ::read(report_, &end, sizeof end) == sizeof end;
  if (!told) {
    end = {};
    end.seconds = now() - started_;
    if (end.seconds >= limits_.seconds) end.how = ChildEnd::How::kOutOfTime;
    ::kill(supervisor_, SIGKILL);
    kill_descendants(janitor_);
  }
  while (::waitpid(supervisor_, nullptr, 0) < 0 && errno == EINTR) {
  }
  supervisor_ = -1;
  return end;
}

}  // namespace qkv::cli
