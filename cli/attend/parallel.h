// `qkv attend --parallel`: each rank reads, computes and writes its rows. Not: the whole on one machine (cmd_attend.cc).
#pragma once

#include "attend/capture.h"
#include "attend/modifiers.h"
#include "attend/options.h"
#include "ranks/methods.h"
#include "ranks/ranks.h"

namespace qkv::cli {

/// Everything that `qkv attend` may be given.
struct AllAttendOptions : AttendOptions {
  ModifierOptions modifiers;
  CaptureOptions capture;
  ParallelOptions parallel;
  CutOptions cut;
};

void add_attend_parallel_options(CLI::App& app, AllAttendOptions& options);

/// On one rank: all ranks together write what one machine would write. UsageError for what is not cut: .npy files, weights, captures.
void attend_on_ranks(const AllAttendOptions& options, const Ranks& ranks);

}  // namespace qkv::cli
