// A person's Python file: run by the embedded runner in a child process, then judged. Not: the runner
// (python/qkv/_judge/runner).
#pragma once

#include "judge/options.h"

namespace qkv::cli {

judge::Finding judge_python(const JudgeOptions& options);

}  // namespace qkv::cli
