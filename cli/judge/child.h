// A command in a process of its own, under limits, after which none of its descendants is alive. Not: which command
// (python.h, run.h), its folder (scratch.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/scratch.h"

namespace qkv::cli {

struct Limits {
  double seconds = 60;                            ///< on the wall; also of processor time
  std::uint64_t memory = std::uint64_t{4} << 30;  ///< bytes of addresses of each process
  std::uint64_t file = std::uint64_t{256} << 20;  ///< bytes of each file that is written
};

/// What a command writes to a standard stream: a file without a name, so that nothing else can be put in its place.
class Output {
 public:
  explicit Output(const Scratch& scratch);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  int descriptor() const { return descriptor_; }
  std::string last_lines(std::size_t count) const;  ///< empty when there are none

 private:
  int descriptor_;
};

struct ChildCommand {
  std::vector<std::string> words;  ///< the program, found by PATH, and its arguments
  const Output &out, &err;         ///< its standard streams
  bool channel = false;            ///< descriptors 3 (to read) and 4 (to write) are a channel of lines
  bool own_namespace = true;       ///< of processes, where the system allows it
  Limits limits;
};

/// How a command ended.
struct ChildEnd {
  enum class How { kExited, kSignal, kOutOfTime, kNotStarted, kLost };
  How how = How::kLost;
  int number = 0;  ///< exit code, signal, or errno of a command that could not be started
  double seconds = 0;

  bool success() const { return how == How::kExited && number == 0; }
  std::string text(const Limits& limits) const;  ///< "it did not end within 60 s (--time-limit)"
};

/// A supervising process starts the command in a PID namespace, or else adopts whatever the command leaves behind; when
/// the command ends, its time ends or the tool ends, it kills them all. Should the command, without a namespace, stop
/// or kill its supervisor, the tool does the same.
class Child {
 public:
  Child(const ChildCommand& command, const Scratch& scratch);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  /// The next line of the channel; none when the command has ended.
  std::optional<std::string> line();
  void say(std::string_view line);
  /// Waits for the end of the command and of its descendants.
  ChildEnd end();

 private:
  bool readable(int descriptor) const;  // false: the supervisor does not do its work

  Limits limits_;
  pid_t janitor_, supervisor_ = -1;
  int lifeline_ = -1, report_ = -1, to_ = -1, from_ = -1;
  double started_ = 0;
  std::string unread_;
};

inline constexpr std::size_t kLastLines = 6;  ///< of what a program said that are shown

}  // namespace qkv::cli
