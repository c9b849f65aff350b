// The pairwise list: for every valid pair of values of two options a choice that has both, greedily, with a fixed seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/random.h"

namespace qkv::test {

/// `counts`: how many values each option has. `legal` says whether a choice of values is a case.
template <class Number, std::size_t kOptions, class Legal> std::vector<std::array<Number, kOptions>> pairwise_choices(
    const std::array<Number, kOptions>& counts, std::uint64_t seed, const Legal& legal) {
  using Values = std::array<Number, kOptions>;
  // The values of all options numbered through: pair (v, w) is v * count + w.
  std::array<std::size_t, kOptions> first{};
  std::vector<std::size_t> option_of;
  for (std::size_t n = 0; n < kOptions; ++n) {
    first[n] = option_of.size();
    option_of.resize(first[n] + static_cast<std::size_t>(counts[n]), n);
  }
  const std::size_t count = option_of.size();
  const auto pairs_of = [&](const Values& choice, const auto& visit) {
    for (std::size_t a = 0; a < kOptions; ++a) {
      const std::size_t row = (first[a] + static_cast<std::size_t>(choice[a])) * count;
      for (std::size_t b = a + 1; b < kOptions; ++b) visit(row + first[b] + static_cast<std::size_t>(choice[b]));
    }
  };
  std::vector<char> uncovered(count * count);
  for (std::size_t pair = 0; pair < uncovered.size(); ++pair)
    uncovered[pair] = option_of[pair / count] < option_of[pair % count];
  Random random(seed);
  std::vector<Values> choices;
  for (std::size_t wanted = 0; wanted < uncovered.size(); ++wanted) {
    if (uncovered[wanted] == 0) continue;
    const std::size_t a = option_of[wanted / count], b = option_of[wanted % count];
    Values best{};
    int best_gain = 0;
    for (int draw = 0; draw < 60; ++draw) {
      Values choice{};
      for (std::size_t n = 0; n < kOptions; ++n)
        choice[n] = static_cast<Number>(random.below(static_cast<Index>(counts[n])));
      choice[a] = static_cast<Number>(wanted / count - first[a]);
      choice[b] = static_cast<Number>(wanted % count - first[b]);
      if (!legal(choice)) continue;
      int gain = 0;
      pairs_of(choice, [&](std::size_t pair) { gain += uncovered[pair]; });
      if (gain > best_gain) best = choice, best_gain = gain;
    }
    uncovered[wanted] = 0;  // also when no legal choice holds it
    if (best_gain == 0) continue;
    pairs_of(best, [&](std::size_t pair) { uncovered[pair] = 0; });
    choices.push_back(best);
  }
  return choices;
}

}  // namespace qkv::test
