// The parts of the sweep: families of numbered cases, each run against the checks of the tests.
#pragma once

#include <vector>

#include "support/checks/bounds.h"

namespace qkv::test {

struct Family {
  const char* name;
  const char* multiplied;  // options that are combined exhaustively
  const char* drawn;       // options that vary with the case's number
  Index count;
  /// Runs case n and records what it compared; false when no such case exists.
  bool (*run)(Index n, Worst& worst);
};

Family attention_family();
Family second_order_family();
Family capture_family();
Family sequences_family();
Family ragged_family();
Family linear_family();
Family cache_family();
Family ring_family();
Family rotary_family();
Family grouped_family();

/// Splits a case's number into digits, the fastest first.
class Digits {
 public:
  explicit Digits(Index number) : rest_(number) {}
  Index next(Index base) {
    const Index digit = rest_ % base;
    rest_ /= base;
    return digit;
  }
  template <class Values> auto of(const Values& values) {
    return values[static_cast<std::size_t>(next(static_cast<Index>(values.size())))];
  }

 private:
  Index rest_;
};

/// Largest work() of a case of a product; every kLargeEvery-th may be as large as those of the pairwise list. Long
/// double, in which double's exact results are computed, is slow.
inline constexpr double kProductWork = 1e5;
inline constexpr Index kLargeEvery = 101;  // coprime to the numbers of values

}  // namespace qkv::test
