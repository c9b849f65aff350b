// Shared by the examples: random inputs, a comparison, a table, a verdict.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "qkv/tensor.h"

/// Uniform numbers in [-1, 1), the same for the same seed.
inline qkv::Tensor<float> random_tensor(std::vector<qkv::Index> sizes, unsigned seed) {
  qkv::Tensor<float> tensor(std::move(sizes));
  std::mt19937 random(seed);
  for (float& value : tensor.span()) value = static_cast<float>(random()) * 0x1p-31F - 1.0F;
  return tensor;
}

/// Largest |a - b|; infinite when the sizes differ or a NaN meets a number.
inline double largest_difference(const qkv::Tensor<float>& a, const qkv::Tensor<float>& b) {
  double largest = a.sizes() == b.sizes() ? 0.0 : INFINITY;
  for (qkv::Index n = 0; n < std::min(a.count(), b.count()); ++n) {
    const double difference = std::abs(static_cast<double>(a.data()[n]) - static_cast<double>(b.data()[n]));
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

inline void print_table(const char* title, qkv::View<const float, 2> rows) {
  std::printf("%s\n", title);
  for (qkv::Index i = 0; i < rows.size(0); ++i) {
    for (qkv::Index j = 0; j < rows.size(1); ++j) std::printf("%7.3f", static_cast<double>(rows(i, j)));
    std::printf("\n");
  }
}

/// Prints what was checked and whether it held; returns main's exit status.
inline int verdict(bool held, const char* what) {
  std::printf("%s: %s\n", held ? "checked" : "DOES NOT HOLD", what);
  return held ? 0 : 1;
}
