// How a command of the tool is made. To add one, write cli/<name>/cmd_<name>.cc:
//
//   #include <CLI/CLI.hpp>                                          // costs each file seconds: only where options are added
//
//   namespace {
//   struct NameOptions { std::string file; bool json = false; };
//   int run_name(const NameOptions& options) { ...; return 0; }     // throws on failure; main prints the one line
//   std::function<int()> declare_name(CLI::App& app) {              // called once at start: options only, no work
//     auto options = std::make_shared<NameOptions>();
//     app.add_option("--file", options->file, "What it is")->type_name("FILE")->required();
//     return [options] { return run_name(*options); };              // called when the command was chosen
//   }
//   const bool name_added = add_command({"name", "One line for the list of commands", "qkv name --file x.npy", declare_name});
//   }  // namespace
//
// That is all: CMake finds the file, main finds the command (its place in the list is kOrder in main.cc).
// Exit codes: return 0; throw UsageError (2) for what the caller gave wrongly, any qkv::Error but IoError is 2 too; IoError
// and any other exception is 1. Files: read with load_* of files.h (a file that cannot be read is 2), written through Outputs.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace qkv::cli {

/// What the caller gave wrongly: exit code 2. The text names the option or file, the place, and how to fix it.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Command {
  std::string name;
  std::string summary;
  std::string example;  ///< of --help; several lines allowed
  std::function<std::function<int()>(CLI::App&)> declare;
};

/// Returns true, so that a namespace-scope constant can call it.
bool add_command(Command command);
/// Every command that was added, in no particular order.
std::vector<Command>& commands();

}  // namespace qkv::cli
