// The kinds of a trained model's heads (qkv/view/kinds.h), over windows that training did not draw.
#pragma once

#include <vector>

#include "qkv/view/kinds.h"
#include "train/options.h"

namespace qkv::cli {

/// By layer, then head; of `run`'s first fresh batch. `cut`: heads that are left out.
std::vector<view::HeadKind> kinds_of_model(const TrainRun& run, const lm::HeadSet& cut, Context& context);

}  // namespace qkv::cli
