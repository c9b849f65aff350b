// The texts that are compiled in (text/*.txt, and the tasks that the runner reads too). Not: what they say
// (textbook.cc, catalogue.cc, tasks.cc).
#pragma once

#include <string_view>
#include <vector>

namespace qkv::judge {

/// Lines without comments and empty ones, which last as long as the program.
std::vector<std::string_view> text_lines(std::string_view file);

}  // namespace qkv::judge
