// libFuzzer: words, one a line, are options of a command or refused; the values inside them likewise. Nothing is run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "mask/expression.h"
#include "qkv/error.h"
#include "ranks/methods.h"
#include "support/options.h"

namespace {

/// The value may be refused.
template <class Read> void may_refuse(const Read& read) {
  try {
    static_cast<void>(read());
  } catch (const qkv::cli::UsageError&) {
  } catch (const qkv::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv::cli;
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word);) words.push_back(word);
  CLI::App app("qkv");
  std::vector<std::function<int()>> runs;  // they hold what is parsed
  for (const Command& command : commands()) {
    Options add(*app.add_subcommand(command.name, command.summary));
    // Only of those that are named, as to declare all takes 10 ms.
    if (std::ranges::find(words, command.name) != words.end()) runs.push_back(command.declare(add));
  }
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError&) {
  }
  for (const std::string& word : words) {
    may_refuse([&] { return parse_indices("--x", word); });
    may_refuse([&] { return parse_heads("--x", word); });
    may_refuse([&] { return parse_rotary(word); });
    may_refuse([&] { return parse_method(word); });
    may_refuse([&] { return parse_layout(word, true); });
    may_refuse([&] { return parse_align("--x", word); });
    may_refuse([&] { return parse_empty_row(word); });
  }
  return 0;
}
