// Shows each part of attention by removing it: the experiments of article 003 along the position axis, the
// scale, the mask. Every sentence is checked against the numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "judge/array.h"
#include "qkv/context.h"
#include "qkv/view/heatmap.h"
#include "support/claim.h"

namespace qkv::cli {

/// Lines of a table that name its columns.
inline constexpr std::size_t kHeadingLines = 2;

struct Experiment {
  std::string title;               ///< what is done
  std::vector<std::string> table;  ///< lines of ASCII, the first kHeadingLines are the heading; may be empty
  std::vector<view::AttentionMap> maps;
  std::vector<Claim> claims;
  Json numbers;
};

/// Models that no-mask trains.
inline constexpr Index kTrainings = 4;

struct AblateOptions {
  Index steps = 400;  ///< of each training of no-mask
  std::uint64_t seed = 0;
  std::function<void(Index done, Index total)> on_step{};  ///< of all trainings together
};

// Experiments; kExperiments in cmd_ablate.cc names them.
Experiment ablate_same_q(const AblateOptions& options, Context& context);
Experiment ablate_same_k(const AblateOptions& options, Context& context);
Experiment ablate_zero_v(const AblateOptions& options, Context& context);
Experiment ablate_scale(const AblateOptions& options, Context& context);
Experiment ablate_mask(const AblateOptions& options, Context& context);

/// Weights [T, T] of one sequence, drawn beside each other, each with a name: "no mask", "causal".
view::AttentionMap map_of(
    const std::string& title, const std::vector<std::string>& words, const std::vector<judge::Array>& weights);

}  // namespace qkv::cli
