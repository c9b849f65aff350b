// How a command of the tool is made. To add one, write cli/<name>/cmd_<name>.cc:
//
//   struct NameOptions { std::string file; bool json = false; };
//   void declare(Options& add, NameOptions& options) {              // called once at start: options only, no work
//     add("--file FILE", &options.file, "What it holds", {.required = true});
//     add.json(options.json);
//   }
//   int run(const NameOptions& options) { ...; return 0; }          // throws on failure; main prints the one line
//   const bool added = add_command({"name", "One line for the list", "qkv name --file x.npy"}, declare, run);
//
// That is all: CMake finds the file, main finds the command (kOrder in main.cc orders the list).
// Exit codes: return 0; throw UsageError (2) for what the caller gave wrongly, any qkv::Error but IoError is 2 too;
// IoError and any other exception is 1. Files: read with load_* of files.h (a file that cannot be read is 2), written
// through Outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "qkv/types.h"

namespace CLI {
class App;
}

namespace qkv::cli {

/// An error of the caller's: exit code 2. The text names the option or file, the position, and how to fix it.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// --threads N, --isa NAME, --bits NAME (options.h says what they mean).
struct ComputeOptions;

/// The variable that an option sets. An optional one stays empty where the option is not given.
using Target = std::variant<bool*, std::optional<bool>*, std::string*, std::optional<std::string>*,
    std::vector<std::string>*, double*, std::optional<double>*, std::optional<float>*, int*, Index*,
    std::optional<Index>*, std::uint64_t*, std::optional<std::uint64_t>*>;

struct Rule {
  bool required = false;
  std::uint64_t least = 0, most = std::numeric_limits<std::uint64_t>::max();  ///< of a number; of its type at most
  bool negative = false;                                                      ///< a number may be below `least`
  std::string needs{};                                                        ///< another option, added before
  std::vector<std::string> excludes{};                                        ///< others, added before
  std::vector<std::string> among{};                                           ///< the only words allowed
};

/// The options of one command. Only command.cc and main.cc read CLI11, which costs a file seconds.
class Options {
 public:
  explicit Options(CLI::App& app) : app_(app) {}

  /// Options that follow stand under this heading of --help.
  void heading(const std::string& text) { heading_ = text; }
  /// `spelled`: "--q FILE", "--json", "NAME" (no dashes: by position), "--weights [FILE]" (the value may be left out),
  /// "--causal{square}" (a flag whose value may be set by =), "--causal,!--no-causal". A vector takes repeated options.
  void operator()(const std::string& spelled, Target target, const std::string& help, const Rule& rule = {});
  void compute(ComputeOptions& options, int threads = 0);  ///< `threads`: the default of --threads; 0: all
  void json(bool& json, const Rule& rule = {}) {
    (*this)("--json", &json, "One JSON document on standard output", rule);
  }
  /// Above the example of --help.
  void footer(const std::string& text);

 private:
  CLI::App& app_;
  std::string heading_;
};

struct Command {
  std::string name;
  std::string summary;
  std::string example;  ///< of --help; several lines allowed
  std::function<std::function<int()>(Options&)> declare{};
};

/// Every command that was added, in no particular order.
std::vector<Command>& commands();

/// Returns true, so that a namespace-scope constant can call it.
template <class Given> bool add_command(Command command, void (*declare)(Options&, Given&), int (*run)(const Given&)) {
  command.declare = [declare, run](Options& add) {
    const auto given = std::make_shared<Given>();
    declare(add, *given);
    return [given, run] { return run(*given); };
  };
  commands().push_back(std::move(command));
  return true;
}

}  // namespace qkv::cli
