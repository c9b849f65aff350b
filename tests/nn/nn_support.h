// Shared by the tests of layers: random tensors, bitwise comparison, gradients by finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "core/threads/context_impl.h"
#include "qkv/nn/nn.h"
#include "support/errors.h"
#include "support/moments.h"
#include "support/storage.h"

namespace qkv::test {

inline Tensor<BFloat16> random_bf16(std::vector<Index> sizes, std::uint64_t seed) {
  return random_tensor<BFloat16>(std::move(sizes), seed);
}

/// |got - expected| / |expected|, norms over all numbers.
template <class T> double distance(std::span<const T> got, std::span<const float> expected) {
  double difference = 0, size = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    const auto e = static_cast<double>(expected[n]), g = static_cast<double>(static_cast<float>(got[n]));
    difference += (g - e) * (g - e), size += e * e;
  }
  return std::sqrt(difference / size);
}

template <class Values> bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}
inline bool same_bits(const Tensor<float>& a, const Tensor<float>& b) {
  return a.sizes() == b.sizes() && same_bits(a.span(), b.span());
}
inline bool same_bits(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t n = 0; n < a.size(); ++n) {
    const auto& [name, tensor] = a.entries()[n];
    const auto& other = b.entries()[n];
    if (name != other.name || tensor.sizes != other.tensor.sizes || tensor.bytes != other.tensor.bytes) return false;
  }
  return true;
}

/// A state dict of the given names and sizes; values by index.
inline StateDict state_of(const std::vector<std::pair<std::string, std::vector<Index>>>& parts) {
  StateDict state;
  std::uint64_t seed = 0;
  for (const auto& [name, sizes] : parts) state.add(name, any_tensor(random_tensor(sizes, ++seed)));
  return state;
}

/// Shared heads as heads of their own: the rows [Hkv D, E] of k's and v's weights, of two heads, each twice.
inline StateDict with_repeated_heads(const StateDict& shared, std::string_view key, std::string_view value) {
  StateDict state;
  for (const StateDict::Entry& entry : shared.entries()) {
    if (!entry.name.ends_with(key) && !entry.name.ends_with(value)) {
      state.add(entry.name, entry.tensor.clone());
      continue;
    }
    const Tensor<float> rows = to_f32(entry.tensor);
    Tensor<float> all({2 * rows.size(0), rows.size(1)});
    const Index head = rows.count() / 2;
    for (Index h = 0; h < 4; ++h) std::copy_n(rows.data() + h / 2 * head, head, all.data() + h * head);
    state.add(entry.name, any_tensor(all));
  }
  return state;
}

/// The bytes of tensors and state dicts, one behind the other.
template <class... Parts> std::string bits_of(const Parts&... parts) {
  std::string all;
  const auto add = [&all](const auto& part) {
    if constexpr (requires { part.entries(); }) {
      for (const auto& [name, tensor] : part.entries()) {
        all += name;
        all.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      }
    } else {
      const auto bytes = std::as_bytes(part.span());
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  };
  (add(parts), ...);
  return all;
}

/// run(context) gives bits_of what it computes: the same for any number of threads, in parallel regions however small
/// the work.
template <class Run> void expect_same_bits_for_threads(const Run& run, int most = 4, std::optional<Isa> isa = {}) {
  std::string first;
  for (int threads = 1; threads <= most; ++threads) {
    Context context({.threads = threads, .isa = isa});
    context.impl().region_flops = 0;
    const std::string bits = run(context);
    if (threads == 1) first = bits;
    EXPECT_FALSE(bits.empty());
    EXPECT_TRUE(bits == first) << threads << " threads";
  }
}

/// Fills every value with uniform numbers in [-1, 1).
inline void randomise(nn::Module& module, std::uint64_t seed) {
  Random random(seed);
  for (const nn::Parameter& one : module.parameters()) {
    for (float& value : one.value) value = static_cast<float>(random.symmetric());
  }
}

inline double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += static_cast<double>(a[n]) * static_cast<double>(b[n]);
  return sum;
}

/// Compares `gradient` (of sum(f() * dout) with respect to `values`) with differences of f along random directions of
/// +-1. Central differences at h and 2h estimate their own truncation error (at h it is a quarter of the estimate,
/// which is allowed in full); f's rounding is at most `roundings` * eps of its terms, divided by h. The bound must be
/// small against the derivative itself, otherwise the check could not fail, unless the derivative is 0 but for rounding
/// (`vanishes`).
inline void check_gradient(const std::string& what, std::span<float> values, std::span<const float> gradient,
    std::span<const float> dout, const std::function<Tensor<float>()>& f, double roundings = 64,
    bool vanishes = false) {
  constexpr double kStep = 0x1p-6;
  for (std::uint64_t direction = 1; direction <= 3; ++direction) {
    Random random(direction);
    std::vector<float> signs;
    double expected = 0;
    double size = 0;
    // Signs along the gradient, except every fourth at random: the derivative is then large, and every element takes
    // part.
    for (const float g : gradient) {
      const bool negative = random.below(4) == 0 ? random.below(2) == 0 : g < 0;
      signs.push_back(negative ? -1.0F : 1.0F);
      expected += static_cast<double>(g) * static_cast<double>(signs.back());
      size += std::abs(static_cast<double>(g));
    }
    const std::vector<float> before(values.begin(), values.end());
    double terms = 0;
    const auto loss = [&](double step) {
      for (std::size_t n = 0; n < values.size(); ++n) values[n] = before[n] + static_cast<float>(step) * signs[n];
      const Tensor<float> y = f();
      terms = 0;
      for (std::size_t n = 0; n < dout.size(); ++n) {
        terms += std::abs(static_cast<double>(y.data()[n]) * static_cast<double>(dout[n]));
      }
      return dot(y.span(), dout);
    };
    const auto difference = [&](double step) { return (loss(step) - loss(-step)) / (2 * step); };
    const double at_h = difference(kStep);
    const double at_2h = difference(2 * kStep);
    std::ranges::copy(before, values.begin());
    const double rounding = roundings * static_cast<double>(std::numeric_limits<float>::epsilon()) * terms /
                            std::sqrt(static_cast<double>(dout.size())) / kStep;
    const double bound = std::abs(at_2h - at_h) + rounding;
    EXPECT_LE(std::abs(at_h - expected), bound) << what << ": expected " << expected << ", difference " << at_h;
    if (vanishes) continue;
    EXPECT_LE(bound, 0.25 * size) << what << ": the bound could not fail";
  }
}

}  // namespace qkv::test
