// The product of some options of the case list: every value of each with every value of the others. An option not
// multiplied is drawn with the case's number as the seed, again until the case is legal and small enough, so that the
// sizes of the whole list go round beside every combination.
#pragma once

#include <optional>
#include <span>

#include "support/cases/cases.h"
#include "support/random.h"

namespace qkv::test {

inline Index product_count(std::span<const Option> multiplied) {
  Index count = 1;
  for (const Option option : multiplied) count *= static_cast<Index>(option_values()[static_cast<std::size_t>(option)]);
  return count;
}

/// Case n; none when no draw is legal. The options in `off` have their first value, which is none.
inline std::optional<AttentionCase> product_case(
    Index n, std::span<const Option> multiplied, std::span<const Option> off, double max_work) {
  constexpr int kDraws = 400;
  const Choice counts = option_values();
  Random random(static_cast<std::uint64_t>(n));
  for (int draw = 0; draw < kDraws; ++draw) {
    Choice choice{};
    for (std::size_t option = 0; option < kNumOptions; ++option) {
      choice[option] = static_cast<std::size_t>(random.below(static_cast<Index>(counts[option])));
    }
    for (const Option option : off) choice[static_cast<std::size_t>(option)] = 0;
    auto rest = static_cast<std::size_t>(n);
    for (const Option option : multiplied) {
      const auto at = static_cast<std::size_t>(option);
      choice[at] = rest % counts[at];
      rest /= counts[at];
    }
    const AttentionCase made = case_of(choice, static_cast<std::uint64_t>(n));
    if (made.legal() && made.work() <= max_work) return made;
  }
  return std::nullopt;
}

}  // namespace qkv::test
