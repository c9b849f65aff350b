#include "support/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>

#include "io/unfinished_files.h"

namespace qkv::cli {
namespace {

// Any thread may run the handler: lock-free atomics, not volatile sig_atomic_t.
std::atomic<bool> held{false};
std::atomic<int> waiting{0};

// The text stays: a handler may be reading it when another is set.
std::atomic<const std::string*> last_words{nullptr};

void end_by(int number) {
  if (const std::string* const words = last_words; words != nullptr && number == SIGTERM) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, words->data(), words->size());
  }
  remove_unfinished_files();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

extern "C" void qkv_tool_stop(int number) {
  if (held) {
    waiting = number;
    return;
  }
  end_by(number);
}

}  // namespace

void handle_signals() {
  ::signal(SIGXFSZ, SIG_IGN);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = qkv_tool_stop;
    action.sa_flags = SA_NODEFER | SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

void set_last_words(const std::string& text) {
  static std::deque<std::string> all;
  last_words = text.empty() ? nullptr : &all.emplace_back(text);
}

SignalsHeld::SignalsHeld() { held = true; }

SignalsHeld::~SignalsHeld() {
  held = false;
  if (const int number = waiting.exchange(0); number != 0) end_by(number);
}

}  // namespace qkv::cli
