// --run: a program of any language, started once a probe: it reads one .safetensors and writes another. Not: Python
// (python.h).
#pragma once

#include "judge/options.h"

namespace qkv::cli {

/// Words between spaces; quotes '...' and "..." keep spaces, a backslash outside '...' takes the next character as it
/// is. No shell: no variables, no wildcards. UsageError for a quote that does not end.
std::vector<std::string> split_words(const std::string& text);

/// Exit code 3 with a text that begins with "fill in" is a program not yet filled in.
judge::Finding judge_program(const JudgeOptions& options);

}  // namespace qkv::cli
