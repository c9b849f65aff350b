// The tool `qkv`: finds the command, runs it, and turns whatever went wrong into one line and an exit code.
// Exit codes: 0 done, 1 the work failed, 2 wrong usage or input.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <new>

#include "core/escape.h"
#include "core/sentences.h"
#include "qkv/dist/agree.h"
#include "qkv/dist/transport.h"
#include "qkv/error.h"
#include "qkv/version.h"
#include "ranks/launch.h"
#include "support/command.h"
#include "support/language.h"
#include "support/signals.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// The order of `qkv --help`: the main job first.
constexpr std::array<std::string_view, 14> kOrder = {"lesson", "judge", "practice", "train", "generate", "map", "forms",
    "ablate", "explain", "attend", "layer", "mask", "bench", "info"};

/// Commands that have --lang.
constexpr std::array<std::string_view, 7> kSpeakChinese = {
    "lesson", "judge", "practice", "train", "forms", "ablate", "explain"};

bool speaks_chinese(std::string_view name) { return std::ranges::find(kSpeakChinese, name) != kSpeakChinese.end(); }

/// One column of options, one of what they mean, groups one line apart.
class CalmFormatter : public CLI::Formatter {
 public:
  CalmFormatter() { column_width(30); }

  /// CLI11 shows a flag's default in braces; here the description says it.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = is_positional ? option->get_type_name() : CLI::Formatter::make_option_name(option, false);
    for (std::size_t open = name.find('{'); open != std::string::npos; open = name.find('{')) {
      const std::size_t close = name.find('}', open);
      name.erase(open, close == std::string::npos ? close : close - open + 1);
    }
    return name;
  }

  /// The value's name and REQUIRED: CLI11 adds checks, needs and excludes in its own words, which are said when they
  /// are broken.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return {};
    const bool bare = option->get_positional();  // its name is all
    return (bare ? "" : " " + option->get_type_name()) + (option->get_expected_max() > 1 && bare ? " ..." : "") +
           (option->get_required() ? said(" REQUIRED") : "");
  }

  /// CLI11 leaves two empty lines between groups. Headings are lines.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n")) text.erase(at, 1);
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      shown += said(text.substr(at, end - at)) + (end < text.size() ? "\n" : "");
      at = end + 1;
    }
    return shown;
  }
};

/// A pipe that was closed or a full disk must not pass for success, nor for a finding that was not shown.
int finish(int code) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("qkv: standard output could not be written\n", stderr);
    return kFailed;
  }
  return code;
}

int complain(const std::string& command, const std::string& text, int code) {
  std::fflush(stdout);
  std::fputs(
      ("qkv" + (command.empty() ? "" : " " + command) + ": " + rank_label() + one_line(text) + "\n").c_str(), stderr);
  set_last_words({});
  return code;
}

std::string names_of_commands(bool python) {
  std::string names;
  for (const Command& command : commands()) names += (names.empty() ? "" : ", ") + command.name;
  return names + (python ? ", explore" : "");
}

/// Runs the chosen command. Exceptions end here.
int guarded(const std::string& command, const std::function<int()>& run) {
  try {
    return run();
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

/// What is wrong with the first --name= that has nothing behind it, of which CLI11 would take the next word; "": none.
std::string empty_value(const CLI::App& command, int argc, char** argv) {
  for (int n = 2; n < argc && std::string_view(argv[n]) != "--"; ++n) {
    const std::string word = argv[n], name = word.substr(0, word.find('='));
    const CLI::Option* const option =
        word == name + "=" && name.starts_with("--") ? command.get_option_no_throw(name) : nullptr;
    if (option == nullptr) continue;
    return option->get_expected_min() > 0 ? name + " needs a value: got \"\"" : word + " has no value behind its =";
  }
  return {};
}

/// What is wrong with a command line: CLI11's words, or the tool's where CLI11 has its own names or another order.
std::string wrong_use(const CLI::App& command, const std::string& text, int argc, char** argv) {
  if (const std::vector<std::string> unknown = command.remaining(); !unknown.empty()) {
    const std::string& word = unknown.front();
    if (word.starts_with('-')) return "no option is called " + word.substr(0, word.find('='));
    const auto at = std::find(argv + 1, argv + argc, word);
    const CLI::Option* const flag = command.get_option_no_throw(at[-1]);
    const bool meant = flag != nullptr && flag->get_expected_max() == 0 && !flag->get_disable_flag_override();
    return "the word " + escaped(word) + " was not expected" + (meant ? ": write " + (at[-1] + ("=" + word)) : "");
  }
  if (const std::size_t at = text.find(" was given a disallowed flag override"); at != std::string::npos)
    return (at == 1 ? "-" : "--") + text.substr(0, at) + " takes no value";  // CLI11 has the bare name
  if (const std::size_t at = text.find(": At Most 1 required"); at != std::string::npos)
    return text.substr(0, at) + " must be given once: got it again";
  constexpr std::string_view kRequired = ": 1 required ", kMissing = " missing";
  const std::size_t at = text.find(kRequired), type = at + kRequired.size();
  if (at == std::string::npos || !text.ends_with(kMissing)) return text;
  return text.substr(0, at) + " needs a value: " + text.substr(type, text.size() - kMissing.size() - type);
}

int main_of(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const bool python = argc > 0 && argv[0] == std::string("python -m qkv");  // that has `explore` (qkv/__main__.py)
  const Speaking speaking(speaks_chinese(first) ? language(argc, argv) : nullptr);
  CLI::App app("qkv: attention for C++. Trains, runs, draws and explains it.", "qkv");
  app.set_version_flag("--version", std::string("qkv ") + QKV_VERSION, "Print the version");
  app.set_help_flag("-h,--help", said("Print this help"));
  app.footer(
      "\nExample:\n  qkv train --out model.safetensors\n\nqkv COMMAND --help lists a command's options, with an "
      "example.");
  app.require_subcommand(1);
  app.formatter(std::make_shared<CalmFormatter>());  // commands inherit it

  std::ranges::sort(
      commands(), {}, [](const Command& one) { return std::ranges::find(kOrder, one.name) - kOrder.begin(); });
  std::string lang;  // read by language()
  std::vector<std::pair<CLI::App*, std::function<int()>>> runs;
  for (const Command& command : commands()) {
    CLI::App* one = app.add_subcommand(command.name, said(command.summary));
    one->footer("\nExample:\n  " + command.example);
    Options add(*one);
    if (speaks_chinese(command.name))
      add("--lang NAME", &lang, "auto: as the environment says; en; zh: Chinese (default auto)",
          {.among = {"auto", "en", "zh"}});
    runs.emplace_back(one, command.declare(add));
  }
  if (python) app.add_subcommand("explore", "Every head of a Hugging Face model in one page");

  if (first.empty())
    return complain({}, "a command is required: " + names_of_commands(python) + " (see qkv --help)", kWrongUse);
  const std::string option = first.substr(0, first.find('='));
  if (first[0] == '-' && option != "-h" && option != "--help" && option != "--version") {
    const bool known =
        std::ranges::any_of(runs, [&](const auto& one) { return one.first->get_option_no_throw(option) != nullptr; });
    const std::string text =
        known ? option + " stands behind the command: qkv COMMAND " + option : "no option is called " + option;
    return complain({}, text + " (see qkv --help)", kWrongUse);
  }
  if (first[0] != '-' && std::ranges::find(commands(), first, &Command::name) == commands().end()) {
    return complain(
        {}, "no command is called " + escaped(first) + ": there are " + names_of_commands(python), kWrongUse);
  }
  const auto named = std::ranges::find(runs, first, [](const auto& one) { return one.first->get_name(); });
  const std::string empty = named == runs.end() ? "" : empty_value(*named->first, argc, argv);
  if (!empty.empty()) return complain(first, empty + " (see qkv " + first + " --help)", kWrongUse);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    if (named == runs.end()) return complain({}, error.what() + std::string(" (see qkv --help)"), kWrongUse);
    const std::string text = wrong_use(*named->first, error.what(), argc, argv);
    return complain(first, text + " (see qkv " + first + " --help)", kWrongUse);
  }
  for (const auto& [one, run] : runs) {
    if (!one->parsed()) continue;
    const CLI::Option* const parallel = one->get_option_no_throw("--parallel");
    const std::string text =
        complaint_about_copies(one->get_name(), parallel != nullptr, parallel != nullptr && parallel->count() > 0);
    if (!text.empty()) return leave_it_to_the_first() ? kWrongUse : complain(one->get_name(), text, kWrongUse);
    return guarded(one->get_name(), run);
  }
  return kWrongUse;
}

}  // namespace
}  // namespace qkv::cli

int main(int argc, char** argv) {
  qkv::cli::handle_signals();
  return qkv::cli::finish(qkv::cli::guarded({}, [&] { return qkv::cli::main_of(argc, argv); }));
}
