// The tool `qkv`: finds the command, runs it, and turns whatever went wrong into one line and an exit code.
// Not: the commands (NAME/cmd_NAME.cc). Exit codes: 0 done, 1 the work failed, 2 wrong usage or input.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <new>

#include "core/escape.h"
#include "qkv/dist/agree.h"
#include "qkv/dist/transport.h"
#include "qkv/error.h"
#include "qkv/version.h"
#include "ranks/launch.h"
#include "support/command.h"
#include "support/help.h"
#include "support/signals.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// The order of `qkv --help`: the main job first.
constexpr std::array<std::string_view, 13> kOrder = {"judge",   "practice", "train", "generate", "map",       "forms", "ablate",
                                                     "explain", "attend",   "layer", "mask",  "bench", "info"};

auto place_in_help(const Command& command) { return std::ranges::find(kOrder, command.name) - kOrder.begin(); }

/// A pipe that was closed or a full disk must not look like success. A failure has already printed its one line.
int finish(int code) {
  if (code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    std::fputs("qkv: standard output could not be written\n", stderr);
    return kFailed;
  }
  return code;
}

int complain(const std::string& command, const std::string& text, int code) {
  std::fflush(stdout);
  std::fputs(("qkv" + (command.empty() ? "" : " " + command) + ": " + rank_label() + one_line(text) + "\n").c_str(), stderr);
  set_last_words({});
  return code;
}

std::string names_of_commands() {
  std::string names;
  for (const Command& command : commands()) names += (names.empty() ? "" : ", ") + command.name;
  return names;
}

/// An option that wants a file's name and was given an empty one: without it the file would not be written, which is not
/// what was asked for.
void require_file_names(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name() != "FILE" && option->get_type_name() != "DIR") continue;
    const std::vector<std::string> names = option->results();
    if (std::ranges::find(names, "") != names.end())
      throw UsageError(option->get_name() + " needs the name of a file: got \"\"");
  }
}

/// Runs the chosen command. This is the one place where exceptions end.
int guarded(const std::string& command, const std::function<int()>& run) {
  try {
    return finish(run());
  } catch (const UsageError& error) {
    return complain(command, error.what(), kWrongUse);
  } catch (const dist::MismatchError& error) {
    return leave_it_to_the_first() ? kWrongUse : complain(command, error.what(), kWrongUse);
  } catch (const IoError& error) {
    return complain(command, error.what(), kFailed);
  } catch (const dist::TransportError& error) {
    const int code = complain(command, error.what(), kFailed);
    let_the_cause_end_first();
    return code;
  } catch (const Error& error) {
    return complain(command, error.what(), kWrongUse);
  } catch (const std::bad_alloc&) {
    return complain(command, "out of memory: use smaller tensors or a machine with more memory", kFailed);
  } catch (const std::exception& error) {
    return complain(command, error.what(), kFailed);
  }
}

int main_of(int argc, char** argv) {
  CLI::App app("qkv: attention for C++. Trains, runs, draws and explains it.", "qkv");
  app.set_version_flag("--version", std::string("qkv ") + QKV_VERSION, "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  app.footer(
      "\nExample:\n  qkv train --out model.safetensors\n\nqkv COMMAND --help lists a command's options, with an example.");
  app.require_subcommand(1);
  app.formatter(help_formatter());  // commands inherit it

  std::ranges::sort(commands(), {}, place_in_help);
  std::vector<std::pair<CLI::App*, std::function<int()>>> runs;
  for (const Command& command : commands()) {
    CLI::App* one = app.add_subcommand(command.name, command.summary);
    one->footer("\nExample:\n  " + command.example);
    runs.emplace_back(one, command.declare(*one));
  }

  std::string chosen;
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) return complain({}, "a command is required: " + names_of_commands() + " (see qkv --help)", kWrongUse);
  if (first[0] != '-' && std::ranges::find(commands(), first, &Command::name) == commands().end()) {
    return complain({}, "no command is called " + escaped(first) + ": there are " + names_of_commands(), kWrongUse);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return finish(app.exit(error));
    for (const CLI::App* one : app.get_subcommands()) chosen = one->get_name();
    return complain(chosen, std::string(error.what()) + " (see qkv " + (chosen.empty() ? "" : chosen + " ") + "--help)",
                    kWrongUse);
  }
  for (const auto& [one, run] : runs) {
    if (!one->parsed()) continue;
    if (const std::string text = complaint_about_copies(*one); !text.empty())
      return leave_it_to_the_first() ? kWrongUse : complain(one->get_name(), text, kWrongUse);
    return guarded(one->get_name(), [&] {
      require_file_names(*one);
      return run();
    });
  }
  return kWrongUse;
}

}  // namespace
}  // namespace qkv::cli

int main(int argc, char** argv) {
  qkv::cli::handle_signals();
  return qkv::cli::guarded({}, [&] { return qkv::cli::main_of(argc, argv); });
}
