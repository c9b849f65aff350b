// Numbers of a finding as text, and what all answers of a code have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/judge.h"
#include "judge/search/search.h"

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
/// "NaN everywhere", "0 everywhere": no mistake is named by an output that nothing could change.
std::string everywhere(const std::vector<Case>& cases);
/// How far the answers are from the textbook with these choices at most, and as a share of a bound.
struct Apart {
  double most = 0, share = 0;
};
Apart apart(const Task& task, const Choices& choices, const std::vector<Case>& cases);
/// Whether these are the scores; hidden ones may be anything: they are returned before the mask, or after it.
bool are_scores(const Work& work, const Given& given);
/// The one thing that all cases that went wrong have, and none of the others, as a note; none where there is nothing.
std::vector<std::string> situation(std::span<const Check> checks, const std::vector<Case>& cases);

}  // namespace qkv::judge
