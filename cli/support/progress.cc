#include "support/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr int kMostColumns = 40;
constexpr auto kRedraw = std::chrono::milliseconds(40);

/// `share` of `columns`, in eighths of a column where the terminal can show them.
std::string bar(double share, int columns) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * columns * 8);
  std::string full, rest;
  if (!terminal().unicode) {
    full.assign(static_cast<std::size_t>(eighths / 8), '#');
    rest.assign(static_cast<std::size_t>(columns - eighths / 8), '.');
    return full + rest;
  }
  for (int n = 0; n < eighths / 8; ++n) full += "█";
  full += kEighths[eighths % 8];
  for (int n = (eighths + 7) / 8; n < columns; ++n) rest += "·";
  return full + faint(rest);
}

}  // namespace

Progress::Progress(Index total, bool quiet) : total_(std::max<Index>(total, 1)), quiet_(quiet) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (drawn_) print("\r\x1b[K");
  drawn_ = false;
}

void Progress::line(std::string_view text) {
  if (quiet_) return;
  clear();
  print_line(text);
  std::fflush(stdout);
}

void Progress::update(Index done, const std::string& words) {
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || !terminal().interactive || now - last_ < kRedraw) return;
  last_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total_);
  const int room = terminal().columns - static_cast<int>(words.size()) - 10;
  if (room < 8) return;
  clear();
  print(fmt::format("{} {:3.0f} %  {}", bar(share, std::min(room, kMostColumns)), 100 * share, words));
  std::fflush(stdout);
  drawn_ = true;
}

}  // namespace qkv::cli
