#include "support/text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "core/escape.h"

namespace qkv::cli {
namespace {

/// The length of the UTF-8 character at the start of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const std::size_t length = byte(0) < 0x80 ? 1 : byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : byte(0) >= 0xC2 ? 2 : 0;
  if (length == 0 || length > text.size() || byte(0) > 0xF4) return 0;
  for (std::size_t n = 1; n < length; ++n) {
    if ((byte(n) & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool says_utf8(const char* locale) {
  std::string lower(locale);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
}

const char* set_or_null(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Terminal look_around() {
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

std::string one_line(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view c = text.substr(0, std::max<std::size_t>(length, 1));
    if (c == "\n" || c == "\r" || c == "\t") {
      result += ' ';
    } else if (c == "\"" || c == "\\") {
      result += c;
    } else {
      const std::string shown = escaped(c);  // in quotes
      result.append(shown, 1, shown.size() - 2);
    }
    text.remove_prefix(c.size());
  }
  while (result.ends_with(' ')) result.pop_back();
  return result;
}

const Terminal& terminal() {
  static const Terminal found = look_around();
  return found;
}

std::string faint(std::string_view text) {
  return terminal().colour ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text);
}
std::string bold(std::string_view text) {
  return terminal().colour ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
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

void print_line(std::string_view text) {
  print(text);
  print("\n");
}

}  // namespace qkv::cli
