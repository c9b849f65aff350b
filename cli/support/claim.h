// Sentences that a program has checked before it says them, and how a command says them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "support/json.h"

namespace qkv::cli {

struct Claim {
  std::string sentence;  ///< said only where it holds
  bool holds = false;
  std::string measured;  ///< the numbers that decided
};

bool all_hold(const std::vector<Claim>& claims);

/// Each that holds with its numbers; each that does not hold as what was expected and what was measured instead.
void print_claims(const std::vector<Claim>& claims);
Json to_json(const std::vector<Claim>& claims);

/// `text` broken at spaces so that no line is longer than the terminal (at most 80), every line after `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent = 0);

/// "1.1e-16", and "0" for an exact 0.
std::string small_text(double value);

/// Columns of lines side by side, each as wide as its longest line, `gap` spaces between.
std::string beside(const std::vector<std::vector<std::string>>& columns, std::size_t gap = 4);

}  // namespace qkv::cli
