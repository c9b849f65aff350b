// From the one file of an exercise to what is printed of it. A region begins with a line `# solution: words` and ends with a
// line `# end`, at any indentation; in C++ both begin with `//`, and what is given stands in place of its #include.
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
  return language == Language::kCpp ? "throw std::logic_error(" + text + ");" : "raise NotImplementedError(" + text + ")";
}

std::string printed(std::string_view text, Language language, bool solved) {
  const std::string comment = language == Language::kCpp ? "// " : "# ";
  const std::string begin = comment + "solution", end = comment + "end";
  std::string result;
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

}  // namespace

std::string skeleton_of(std::string_view text, Language language) { return printed(text, language, false); }
std::string solution_of(std::string_view text, Language language) { return printed(text, language, true); }

}  // namespace qkv::cli
