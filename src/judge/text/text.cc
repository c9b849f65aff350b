#include "judge/text/text.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/embedded_file.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_judge();
std::span<const EmbeddedFile> embedded_tasks();  // what the runner reads too
}  // namespace qkv::inline v0

namespace qkv::judge {

std::vector<std::string_view> text_lines(std::string_view file) {
  const auto files = file == "tasks.txt" ? embedded_tasks() : embedded_judge();
  const auto found = std::ranges::find(files, file, &EmbeddedFile::name);
  if (found == files.end()) throw std::logic_error("[judge] there is no text " + std::string(file));
  std::vector<std::string_view> lines;
  for (std::string_view rest = found->text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    line = line.substr(0, line.find("  # "));
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

}  // namespace qkv::judge
