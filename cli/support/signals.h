// Cleans up when a signal stops the tool: no temporary file stays, and outputs that are being renamed all get their
// names.
#pragma once

#include <string>

namespace qkv::cli {

/// SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE remove unfinished files and then end the process as they always do;
/// what was ignored stays ignored. A write beyond the limit on file sizes is an error of that write (EFBIG), not a
/// signal. Once, before any work.
void handle_signals();

/// Written to standard error when SIGTERM ends the process: a rank that mpirun ends says so in a line of its own.
/// Empty: nothing.
void set_last_words(const std::string& text);

/// While an object lives, those signals wait.
class SignalsHeld {
 public:
  SignalsHeld();
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  ~SignalsHeld();
};

}  // namespace qkv::cli
