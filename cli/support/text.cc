#include "support/text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "core/sentences.h"

namespace qkv::cli {
namespace {

bool says_utf8(const char* locale) {
  std::string lower(locale);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
}

const char* set_or_null(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Terminal of_standard_output() {
  Terminal found;
  found.interactive = isatty(STDOUT_FILENO) == 1;
  const char* term = set_or_null("TERM");
  found.colour = found.interactive && term != nullptr && std::string_view(term) != "dumb" && !set_or_null("NO_COLOR");
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const char* locale = set_or_null(name)) {
      found.unicode = says_utf8(locale);
      break;
    }
  }
  winsize size{};
  if (found.interactive && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) found.columns = size.ws_col;
  return found;
}

}  // namespace

const Terminal& terminal() {
  static const Terminal found = of_standard_output();
  return found;
}

std::string faint(std::string_view text) {
  return terminal().colour ? fmt::format("\x1b[2m{}\x1b[0m", said(text)) : said(text);
}
std::string bold(std::string_view text) {
  return terminal().colour ? fmt::format("\x1b[1m{}\x1b[0m", said(text)) : said(text);
}

view::TerminalOptions map_options(const view::MapOptions& map) {
  view::TerminalOptions options;
  options.map = map;
  options.colour = terminal().colour;
  options.unicode = terminal().unicode;
  options.columns = terminal().columns;
  return options;
}

std::string seconds_text(double seconds) {
  if (seconds < 0.0995) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, units[unit]);
}

void print(std::string_view text) {
  if (text.empty()) return;  // its data may be null, which fwrite may not be given
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void print_line(std::string_view text) { print(said(text) + "\n"); }

void print_map(const view::AttentionMap& map) {
  const std::string drawn = view::render_terminal(map, map_options());
  for (std::string_view text = drawn; !text.empty();) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::string shown;
    while (!line.empty()) {  // a name, and the blanks behind it
      const std::string_view name = line.substr(0, line.find("   "));
      line.remove_prefix(name.size());
      const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
      line.remove_prefix(blanks);
      const std::string translated = said(name);
      const std::size_t before = columns_of(name) + blanks, now = columns_of(translated);
      shown += translated;
      if (blanks > 0) shown.append(before > now ? before - now : 1, ' ');
    }
    print(shown + "\n");
  }
}

}  // namespace qkv::cli
