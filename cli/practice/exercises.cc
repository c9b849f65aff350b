// From the texts of exercises/ to what is printed of one.
#include "practice/exercises.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "core/embedded_file.h"
#include "core/sentences.h"
#include "judge/task.h"
#include "judge/text/language.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_exercises();
}

namespace qkv::cli {
namespace {

std::string_view file_called(std::string_view name) {
  const auto files = embedded_exercises();
  const auto found = std::ranges::find(files, name, &EmbeddedFile::name);
  return found == files.end() ? std::string_view() : found->text;
}

/// Between the line `begin[TASK]` and the next such line; empty where there is none.
std::string_view section(std::string_view text, std::string_view begin, std::string_view task) {
  const std::string head = fmt::format("\n{}[{}]\n", begin, task), next = fmt::format("\n{}[", begin);
  const std::size_t at = text.find(head);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + head.size());
  text = text.substr(0, text.find(next));
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// Solved, with its markers; empty when the task has none in this language.
std::string code_of(std::string_view task, const std::string& language) {
  if (language == "cpp") return std::string(file_called("cpp/" + file_of(task) + ".cc"));
  for (const char* kind : {"_exercises.py", "_decoder_exercises.py"}) {
    const std::string_view own = section(file_called(language + kind), "# ", task);
    if (!own.empty()) return std::string(own);
  }
  const std::string_view either = section(file_called("parts_exercises.py"), "# ", task);
  return std::regex_replace(std::string(either), std::regex(R"(\bxp\.)"), language == "numpy" ? "np." : "torch.");
}

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

/// Of a function beside attention: what it teaches, its arrays, what its functions return.
std::string arrays_of(std::string_view name) {
  const judge::Task& task = *judge::find_task(name);
  const auto listed = [](std::string_view words) { return fmt::format("{}", fmt::join(judge::words_of(words), ", ")); };
  std::string result = fmt::format("{}\n\n", said(task.teaches));
  for (const judge::Argument& one : task.arguments)
    result += fmt::format("    {:<8} [{}]\n", one.name, listed(one.axes));
  for (std::size_t n = 0; n < task.functions.size(); ++n)
    result += fmt::format("    {} -> {}\n", signature(name, task.functions[n]), listed(task.returns[n]));
  return result + "\n";
}

/// The exercise's contract, each line behind `begin`.
std::string contract_of(std::string_view task, char language, std::string_view begin) {
  std::string result = judge::find_task(task)->probe_lines.empty() ? "" : arrays_of(task);
  for (std::string_view text = section(file_called(said("contracts.txt")), "", task); !text.empty();) {
    std::string_view line = next_line(text);
    const std::size_t bar = line.find('|');
    if (line.substr(0, bar).find_first_not_of("ntc") == std::string_view::npos && bar < 4) {
      if (line.substr(0, bar).find(language) == std::string_view::npos) continue;
      line.remove_prefix(bar + 1);
    }
    result.append(begin).append(line);
    result.erase(result.find_last_not_of(' ') + 1);
    result += '\n';
  }
  return result;
}

/// Where it comes from, how it is built and judged, what it asks for, what it includes.
std::string head_of(std::string_view task, const std::string& language, std::string_view code) {
  const std::string from = said(fmt::format("qkv practice {} --{} ; when done: qkv judge", task, language)) + " ";
  const std::string file = file_of(task), contract = contract_of(task, language[0], language == "cpp" ? "// " : "");
  if (language == "cpp") {
    const std::string_view given = file_called("cpp/given.h");
    return fmt::format(
        "// {0}--run './{1} {{in}} {{out}}' --task {2}\n"
        "// c++ -std=c++20 -O2 {1}.cc -o {1} $(pkg-config --cflags --libs qkv-io)\n//\n{3}\n{4}",
        from, file, task, contract, given.substr(given.find("#include")));
  }
  std::string head = fmt::format("# {}{}.py\n\"\"\"{}\"\"\"\n\n", from, file, contract);
  if (language == "numpy") return head + "import numpy as np\n\n\n";
  if (code.find("math.") != std::string_view::npos) head += "import math\n\n";
  return head + "import torch\n" + (code.find("nn.") != std::string_view::npos ? "from torch import nn\n" : "") +
         "\n\n";
}

}  // namespace

std::string file_of(std::string_view task) {
  std::string name(task);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::vector<std::string> languages_of(std::string_view task) {
  std::vector<std::string> found{"torch", "numpy", "cpp"};
  std::erase_if(found, [&](const std::string& language) { return code_of(task, language).empty(); });
  return found;
}

std::string signature(std::string_view task, std::string_view name) {
  for (const char* language : {"numpy", "torch"}) {
    const std::string text = fmt::format("\n{}", code_of(task, language));
    std::size_t at = text.find(fmt::format("\ndef {}(", name));
    const bool is_class = at == std::string::npos;
    if (is_class) at = text.find(fmt::format("\nclass {}(", name));
    if (is_class && at != std::string::npos) at = text.find("def __init__(self, ", at);
    if (at == std::string::npos) continue;
    const std::size_t open = is_class ? text.find(", ", at) + 2 : text.find('(', at) + 1;
    return fmt::format("{}({})", name, text.substr(open, text.find("):", at) - open));
  }
  return {};
}

std::string printed_exercise(std::string_view task, const std::string& language, bool solved) {
  const bool cpp = language == "cpp";
  const std::string_view begin = cpp ? "// solution: " : "# solution: ";
  const std::string code = code_of(task, language);
  std::string_view text = code;
  if (cpp) text.remove_prefix(text.find("\n\n") + 1);  // behind #include "given.h", which is printed instead
  std::string result = head_of(task, language, text), blank;
  std::size_t gap = 0;  // how far its lines are indented; 0: outside
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view words = line.substr(indent);
    if (words.empty()) {
      blank += '\n';  // it goes with what follows
      continue;
    }
    if (indent < gap) gap = 0;
    if (words.starts_with(begin)) {
      gap = indent;
      if (solved) continue;
      // An error that `qkv judge` knows as "not filled in yet".
      result += fmt::format("{}{}{}(\"fill in: {}\"){}\n", blank, line.substr(0, indent),
          cpp ? "throw std::logic_error" : "raise NotImplementedError", said(words.substr(begin.size())),
          cpp ? ";" : "");
    } else if (gap == 0 || solved) {
      result.append(blank).append(line) += '\n';
    }
    blank.clear();
  }
  return result;
}

}  // namespace qkv::cli
