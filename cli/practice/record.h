// Which exercises were judged right: one name a line, $XDG_STATE_HOME/qkv/practice or ~/.local/state/qkv/practice.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace qkv::cli {

using Exercises = std::set<std::string, std::less<>>;
Exercises done_exercises();
/// Nothing is written where there is no such folder and none can be made.
void mark_done(std::string_view task);

/// The exercise that a file was printed as: "# qkv practice NAME ..." is its first line, of C++ after //. Empty for any
/// other file.
std::string exercise_of(const std::string& path);

}  // namespace qkv::cli
