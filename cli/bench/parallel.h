// `qkv bench --parallel METHOD`: one problem of attention, forward and backward, shared among ranks, beside one rank's time for the
// whole. Not: the cases of one machine (bench.h).
#pragma once

#include <string>

#include "ranks/methods.h"
#include "ranks/ranks.h"

namespace qkv::cli {

struct ParallelBenchOptions {
  ParallelOptions parallel;
  CutOptions cut;
  Index tokens = 2048;  ///< of each rank
  Index heads = 8, kv_heads = 0, head_dim = 64;
  int runs = 5;
};

void add_parallel_bench_options(CLI::App& app, ParallelBenchOptions& options);

/// Measures on every rank; the first one prints.
void bench_on_ranks(const ParallelBenchOptions& options, bool json, const Ranks& ranks);

}  // namespace qkv::cli
