// Random numbers for parameters and batches: Philox with a running counter. The same seed and stream give bit-identical
// numbers on every machine, so nothing here calls a mathematics library (their last bits differ); compile with
// -ffp-contract=off, as all of qkv. Box and Muller 1958, "A note on the generation of random normal deviates".
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "core/philox.h"

namespace qkv::inline v0 {

class Random {
 public:
  /// Streams of one seed are independent of one another and of dropout under that seed.
  explicit Random(std::uint64_t seed, std::uint32_t stream = 0) : key_(philox_key(seed)), stream_(stream) {}

  std::uint32_t next_u32() {
    if (used_ == 4) {
      // Word 3 is 1 here and 0 in dropout's counters.
      words_ =
          philox4x32({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32), stream_, 1}, key_);
      ++block_;
      used_ = 0;
    }
    return words_[used_++];
  }

  std::uint64_t next_u64() {
    const std::uint64_t low = next_u32();
    return low | std::uint64_t{next_u32()} << 32;
  }

  /// In [0, 1), a multiple of 2^-24.
  float uniform_f32() { return static_cast<float>(next_u32() >> 8) * 0x1p-24F; }
  /// In [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

  /// Mean 0, variance 1.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * log_of(1 - uniform()));
    const auto [sine, cosine] = sine_cosine_of_turns(uniform());
    spare_ = radius * sine;
    has_spare_ = true;
    return radius * cosine;
  }

  /// One of 0 .. n-1, each equally likely: values of the incomplete last round of n are drawn again. n >= 1.
  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t incomplete = (std::uint64_t{0} - n) % n;  // 2^64 mod n
    for (;;) {
      const std::uint64_t x = next_u64();
      if (x >= incomplete) return x % n;
    }
  }

  /// Natural logarithm of x > 0 by basic operations alone. log(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m in
  /// [0.7, 1.42).
  static double log_of(double x) {
    int exponent = 0;
    double m = std::frexp(x, &exponent);
    if (m < 0.70710678118654752) {
      m *= 2;
      --exponent;
    }
    const double s = (m - 1) / (m + 1);  // |s| < 0.1716, so the term after s^23 is below 2^-60
    double sum = 0;
    for (int n = 23; n >= 1; n -= 2) sum = sum * s * s + 1.0 / n;
    return exponent * 0.69314718055994531 + 2 * s * sum;
  }

  /// sin and cos of 2 pi u, u in [0, 1), by Taylor's series on an eighth of a turn either side of a quarter.
  static std::pair<double, double> sine_cosine_of_turns(double u) {
    const double quarter = std::floor(4 * u + 0.5);
    const double x = 6.2831853071795865 * (u - quarter / 4);
    double sine = 1;
    double cosine = 1;
    for (int n = 18; n >= 2; n -= 2) {  // (pi/4)^20 / 20! < 2^-60
      cosine = 1 - cosine * x * x / (n * (n - 1));
      sine = 1 - sine * x * x / (n * (n + 1));
    }
    sine *= x;
    switch (static_cast<int>(quarter) % 4) {
      case 0: return {sine, cosine};
      case 1: return {cosine, -sine};
      case 2: return {-sine, -cosine};
      default: return {-cosine, sine};
    }
  }

 private:
  PhiloxKey key_;
  std::uint32_t stream_;
  std::uint64_t block_ = 0;
  PhiloxWords words_{};
  unsigned used_ = 4;
  bool has_spare_ = false;
  double spare_ = 0;
};

}  // namespace qkv::inline v0
