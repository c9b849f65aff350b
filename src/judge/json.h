// JSON between the judge and whoever runs the code: what was found of the code (subject.json), sizes, a
// finding. Tensors go as safetensors.
#pragma once

#include <string>

#include "judge/report.h"

namespace qkv::judge {

/// The task's sizes but for {"embed": 48, "heads": 4}; kv_heads and head_dim follow where they are not said.
/// OptionError for a size that cannot be, that the task does not have or that does not fit the others, and for what is
/// no object.
Sizes sizes_of(std::string_view task, const std::string& json);

/// A subject.json; one that cannot be understood is a verdict "failed".
Subject subject_of(const std::string& text);

/// What the runner says of a line (runner/trace/where.py); of text that is none, no line.
void set_line(Finding& finding, const std::string& text);

/// Keys as docs/cli/judge.md lists them.
std::string to_json(const Finding& finding);

}  // namespace qkv::judge
