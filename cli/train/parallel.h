// `qkv train --parallel data`: every rank has the whole model and some rows of each batch; gradients are summed over ranks.
#pragma once

#include "ranks/ranks.h"
#include "train/options.h"

namespace qkv::cli {

/// Cuts the run's batches: this rank trains on its rows, and each step's loss and gradients are those of the whole batch. Weights,
/// batches and options must be the same on all ranks: MismatchError. UsageError when there are fewer rows than ranks, or dropout.
void share_batches(const Ranks& ranks, TrainRun& run);

/// MismatchError when the ranks' parameters differ in a bit, which they never should.
void require_same_model(const Ranks& ranks, TrainRun& run);

}  // namespace qkv::cli
