// The logarithm of softmax rows, in vectors of double: a call of libm per row costs as much as a transpose of its
// output.
#pragma once

#include <numbers>

#include "core/maths.h"
#include "simd/vec.h"

namespace qkv {
namespace {

/// log(x) for normal x > 0, relative error below 2e-12: x = 2^e m, m in [sqrt(1/2), sqrt(2));  log m = 2 atanh(s),
/// s = (m - 1) / (m + 1), as its series: the first term left out is s^14 / 15 with s^2 <= 0.0295.
inline F64 log_positive(F64 x) {
  constexpr std::uint64_t one = 0x3FF0000000000000u, root_half = 0x3FE6A09E667F3BCDu, two_to_52 = 0x4330000000000000u;
  const U64 bits = reinterpret_cast<U64>(x);
  const U64 biased = (bits + (one - root_half)) >> 52;  // e + 1023
  const F64 exponent = reinterpret_cast<F64>(biased + two_to_52) - (4503599627370496.0 + 1023.0);
  const F64 m = reinterpret_cast<F64>(bits - ((biased << 52) - one));
  const F64 s = (m - 1.0) / (m + 1.0), z = s * s;
  F64 series = splat(1.0 / 13);
  for (const double c : {1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0}) series = fma(series, z, splat(c));
  return fma(exponent, splat(std::numbers::ln2), (s + s) * series);
}

/// lse[i] = log(2^row_max[i] * row_sum[i]) for `count` rows: -inf where the sum is 0, the sum itself where that is NaN
/// or infinite. row_max and row_sum may be read up to a whole number of vectors. low (null: not wanted): what rounding
/// took from lse, 0 where that is not finite.
inline void log_sum_exp(const float* row_max, const float* row_sum, Index count, float* lse, float* low) {
  constexpr int n = Simd<double>::kLanes;
  typedef float Half __attribute__((vector_size(QKV_VECTOR_BYTES / 2)));
  for (Index i = 0; i < count; i += n) {
    Half maximum, sum;
    __builtin_memcpy(&maximum, row_max + i, sizeof maximum);
    __builtin_memcpy(&sum, row_sum + i, sizeof sum);
    // In doubles to the end: GCC 12 compares halves of an SVE vector of 512 bits wrongly.
    const F64 wide = __builtin_convertvector(sum, F64), zeros{}, infinite = zeros + kInf<double>;
    const F64 exact = fma(__builtin_convertvector(maximum, F64), splat(std::numbers::ln2), log_positive(wide));
    F64 chosen = wide < infinite ? exact : wide;
    chosen = wide == zeros ? -infinite : chosen;
    const Half result = __builtin_convertvector(chosen, Half);
    const std::size_t bytes = static_cast<std::size_t>(smaller<Index>(n, count - i)) * sizeof(float);
    __builtin_memcpy(lse + i, &result, bytes);
    if (low == nullptr) continue;
    F64 lost = exact - __builtin_convertvector(__builtin_convertvector(exact, Half), F64);
    lost = wide < infinite ? lost : zeros;
    lost = wide == zeros ? zeros : lost;
    const Half rest = __builtin_convertvector(lost, Half);
    __builtin_memcpy(low + i, &rest, bytes);
  }
}
inline void log_sum_exp(const double* row_max, const double* row_sum, Index count, double* lse, double* low) {
  for (Index i = 0; i < count; ++i) {
    const maths::Wide shift = maths::product({row_max[i], 0}, maths::kLn2), logarithm = maths::wide_log(row_sum[i]);
    const maths::Wide about = maths::sum(shift.high, logarithm.high);
    const maths::Wide exact = maths::sum(about.high, about.low + (shift.low + logarithm.low));
    const bool is_finite = row_sum[i] > 0 && row_sum[i] < kInf<double>;
    lse[i] = is_finite ? exact.high : row_sum[i] == 0 ? -kInf<double> : row_sum[i];
    if (low != nullptr) low[i] = is_finite ? exact.low : 0;
  }
}

}  // namespace
}  // namespace qkv
