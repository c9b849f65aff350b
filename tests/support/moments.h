// Mean, mean square and largest size of numbers, for the tests of what is drawn at random.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace qkv::test {

struct Moments {
  double count = 0, mean = 0, square = 0, largest = 0;
};

inline Moments moments_of(std::span<const float> values) {
  Moments m{.count = static_cast<double>(values.size())};
  for (const float value : values) {
    const auto x = static_cast<double>(value);
    m.mean += x / m.count, m.square += x * x / m.count, m.largest = std::max(m.largest, std::abs(x));
  }
  return m;
}

}  // namespace qkv::test
