// Numbers of a finding as text.
#pragma once

#include <string>
#include <string_view>

#include "judge/search/match.h"
#include "judge/textbook.h"

namespace qkv::judge {

/// Never "-nan".
std::string number_text(double value, const char* format = "%.6g");
/// "{}" in a sentence replaced.
std::string with_number(std::string_view says, double number);
/// "x [2, 5, 18]": the input whose sizes tell most.
std::string sizes_text(const Probe& probe);
/// "probe "plain", x [2, 5, 18]:", over numbers; where they are few, all inputs, row by row.
std::string heading(const Probe& probe);
/// "out[1, 2, 0:6]": the row of an array that an element lies in, and what was expected and given there.
std::string row_text(const std::string& name, const Array& expected, const Given& given, const Difference& at);

}  // namespace qkv::judge
