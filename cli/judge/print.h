// How a finding looks: JSON for programs, text for people. Not: how it came about (src/judge).
#pragma once

#include "judge/judge.h"
#include "support/json.h"

namespace qkv::cli {

/// Keys as docs/cli/judge.md lists them.
Json to_json(const judge::Finding& finding);

/// With `hint` what is wrong is not said, only where to look.
void print_finding(const judge::Finding& finding, bool hint);

}  // namespace qkv::cli
