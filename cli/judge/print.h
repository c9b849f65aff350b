// How a finding looks: JSON for programs, text for people. Not: how it came about (src/judge).
#pragma once

#include "judge/judge.h"
#include "support/json.h"

namespace qkv::cli {

/// Keys as docs/cli/judge.md lists them.
Json to_json(const judge::Finding& finding);

/// With `hint` what is wrong is not said, only where to look.
void print_finding(const judge::Finding& finding, bool hint);

/// "softmax(QK^T / sqrt(d) + mask) V W_o" with ^^^ below the part that a term means; empty for an unknown term.
std::vector<std::string> formula_of(std::string_view term, bool with_output);

}  // namespace qkv::cli
