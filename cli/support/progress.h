// How a long run shows where it is: a bar that redraws itself when standard output is a terminal, otherwise plain
// lines.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "qkv/types.h"

namespace qkv::cli {

class Progress {
 public:
  /// A quiet one shows nothing (--json).
  Progress(Index total, bool quiet);
  /// The bar disappears: what stays on the screen are the lines.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A line that stays, above the bar.
  void line(std::string_view text);
  /// `done` of the total, and a few words beside the bar. Redraws at most every 40 ms.
  void update(Index done, const std::string& words);
  /// The bar disappears.
  void clear();

 private:
  Index total_;
  bool quiet_, drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace qkv::cli
