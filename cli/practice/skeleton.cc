// From the one file of an exercise to what is printed of it. A region begins with a line `# solution: words` and ends
// with a line `# end`, at any indentation; in C++ both begin with `//`, and what is given stands in place of its
// #include.
#include <fmt/format.h>

#include <stdexcept>

#include "practice/ladder.h"

namespace qkv::cli {
namespace {

constexpr std::string_view kGiven = "#include \"given.h\"";

std::string_view without_indentation(std::string_view line) {
  const std::size_t at = line.find_first_not_of(' ');
  return at == std::string_view::npos ? std::string_view() : line.substr(at);
}

/// What stands instead of a region: an error that `qkv judge` knows as "not filled in yet".
std::string placeholder(std::string_view words, Language language) {
  const std::string text = "\"fill in" + (words.empty() ? "" : ": " + std::string(words)) + '"';
  return language == Language::kCpp ? "throw std::logic_error(" + text + ");"
                                    : "raise NotImplementedError(" + text + ")";
}

/// Where it comes from, how it is built and judged.
std::string head_of(const std::string& task, const std::string& file, Language language) {
  const std::string from = fmt::format("qkv practice {} --{} ; when done: qkv judge ", task, language_name(language));
  if (language != Language::kCpp) return fmt::format("# {}{}.py\n", from, file);
  return fmt::format(
      "// {0}--run './{1} {{in}} {{out}}' --task {2}\n"
      "// c++ -std=c++20 -O2 {1}.cc -o {1} $(pkg-config --cflags --libs qkv-io)\n//\n",
      from, file, task);
}

}  // namespace

std::string printed_exercise(std::string_view task, Language language, bool solved) {
  const std::string comment = language == Language::kCpp ? "// " : "# ";
  const std::string begin = comment + "solution", end = comment + "end";
  std::string_view text = exercise(task, language).value();
  std::string result = head_of(std::string(task), file_of(task), language);
  bool inside = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view words = without_indentation(line);
    if (line == kGiven) {
      const std::string_view given = given_in_cpp();
      result += given.substr(given.find("#include"));
    } else if (!inside && words.starts_with(begin)) {
      inside = true;
      std::string_view rest = words.substr(begin.size());
      if (rest.starts_with(':')) rest = without_indentation(rest.substr(1));
      if (!solved) result.append(line.size() - words.size(), ' ') += placeholder(rest, language) + "\n";
    } else if (inside && words == end) {
      inside = false;
    } else if (!inside || solved) {
      result.append(line) += '\n';
    }
  }
  if (inside) throw std::runtime_error("an exercise has a region `" + begin + "` without `" + end + "`");
  return result;
}

}  // namespace qkv::cli
