// Text output: what the terminal can show, numbers for people.
#pragma once

#include <string>
#include <string_view>

#include "core/escape.h"
#include "qkv/view/pictures.h"

namespace qkv::cli {

/// The kind of standard output, decided once.
struct Terminal {
  bool interactive = false;  ///< stdout is a terminal: a progress bar may redraw itself
  bool colour = false;       ///< interactive, TERM is not dumb, NO_COLOR is not set
  bool unicode = true;       ///< unless the locale names another encoding
  int columns = 80;
};
const Terminal& terminal();

/// `text` in the language of the command, in a quiet grey (headings, hints) or bold, when colours are on.
std::string faint(std::string_view text);
std::string bold(std::string_view text);

/// Options of a terminal map as this terminal can show them.
view::TerminalOptions map_options(const view::MapOptions& map = {});

/// "1.2 s", "31 ms".
std::string seconds_text(double seconds);
/// "32 KiB", "1.0 MiB".
std::string bytes_text(double bytes);

/// Prints to standard output.
void print(std::string_view text);
/// In the language of the command.
void print_line(std::string_view text = {});
/// A map as this terminal can show it, its names in the language of the command: each stays over its head.
void print_map(const view::AttentionMap& map);

}  // namespace qkv::cli
