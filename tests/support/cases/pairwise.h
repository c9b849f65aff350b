// The pairwise list: for every valid pair of values of two options a choice that has both, greedily, with a fixed seed.
#pragma once

#include <array>
#include <set>
#include <vector>

#include "support/random.h"

namespace qkv::test {

/// `counts`: how many values each option has. `legal` says whether a choice of values is a case.
template <class Number, std::size_t kOptions, class Legal> std::vector<std::array<Number, kOptions>> pairwise_choices(
    const std::array<Number, kOptions>& counts, std::uint64_t seed, const Legal& legal) {
  using Values = std::array<Number, kOptions>;
  using Pair = std::array<Number, 4>;  // option, value, option, value
  const auto each_pair = [](const auto& visit) {
    for (std::size_t a = 0; a < kOptions; ++a) {
      for (std::size_t b = a + 1; b < kOptions; ++b) visit(a, b);
    }
  };
  const auto pairs_of = [&](const Values& choice, const auto& visit) {
    each_pair([&](std::size_t a, std::size_t b) {
      visit(Pair{static_cast<Number>(a), choice[a], static_cast<Number>(b), choice[b]});
    });
  };
  std::set<Pair> uncovered;
  each_pair([&](std::size_t a, std::size_t b) {
    for (Number x = 0; x < counts[a]; ++x) {
      for (Number y = 0; y < counts[b]; ++y) uncovered.insert({static_cast<Number>(a), x, static_cast<Number>(b), y});
    }
  });
  Random random(seed);
  std::vector<Values> choices;
  while (!uncovered.empty()) {
    const Pair wanted = *uncovered.begin();
    Values best{};
    std::size_t best_gain = 0;
    for (int draw = 0; draw < 60; ++draw) {
      Values choice{};
      for (std::size_t n = 0; n < kOptions; ++n)
        choice[n] = static_cast<Number>(random.below(static_cast<Index>(counts[n])));
      choice[static_cast<std::size_t>(wanted[0])] = wanted[1];
      choice[static_cast<std::size_t>(wanted[2])] = wanted[3];
      if (!legal(choice)) continue;
      std::size_t gain = 0;
      pairs_of(choice, [&](const Pair& pair) { gain += uncovered.count(pair); });
      if (gain > best_gain) best = choice, best_gain = gain;
    }
    uncovered.erase(wanted);  // also when no legal choice holds it
    if (best_gain == 0) continue;
    pairs_of(best, [&](const Pair& pair) { uncovered.erase(pair); });
    choices.push_back(best);
  }
  return choices;
}

}  // namespace qkv::test
