// Softmax of one strip, chunk by chunk: scores in powers of two become weights that are not yet divided by their sum.
// Two ways, told apart lane by lane and by data only. The quick one takes weights as exp2(s2 - shift) with the shift that the
// lane has (0 at first): no maximum is needed as long as every exponent and the sum stay in a safe range, and that is checked.
// A lane that leaves the range goes by its maximum from there on (Milakov & Gimelshein 2018, 1805.02867), and so does the first
// tile of a strip where that is masked. What a lane gives never depends on the others.
#pragma once

#include "kernels/scores.h"

namespace qkv {
namespace {

/// Sums of a row outside these may hide an overflow or an underflow of p * v that the formula's own p <= 1 would not have.
template <class T>
constexpr T kLargestSum = T{1 << 30} * T{1 << 30};
template <class T>
constexpr T kSmallestSum = T{1} / T{256};

/// Adds p = exp2(s2 - shift) of one part to row_sum; dead lanes get 0. Returns the lanes of which an exponent was out of range.
template <class T, int kCount, bool kShift, bool kMasked>
inline std::uint32_t add_exponentials(T* scores, const Part& part, const std::uint32_t* words, const T* shifts, T* row_sum) {
  using V = typename Simd<T>::V;
  using U = typename Simd<T>::U;
  constexpr int n = Simd<T>::kLanes;
  const int first = part.first * n;
  V shift[kCount], sum[kCount];
  U outside[kCount];
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) {
    shift[v] = load<T>(shifts + first + v * n);
    sum[v] = V{};
    outside[v] = U{};
  }
  for (Index j = part.lo; j < part.hi; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      T* place = scores + j * kStrip<T> + first + v * n;
      V y = load<T>(place);
      if constexpr (kShift) y -= shift[v];
      U strange;
      V p = exp2_in_range<T>(y, strange);
      if constexpr (kMasked) {
        const std::uint32_t bits = words[j] >> (first + v * n);
        p = select_bits<V>(bits, p, V{});
        strange = reinterpret_cast<U>(select_bits<V>(bits, reinterpret_cast<V>(strange), V{}));
      }
      outside[v] |= strange;
      sum[v] += p;
      store<T>(place, p);
    }
  }
  std::uint32_t lanes = 0;
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) {
    T* total = row_sum + first + v * n;
    store<T>(total, load<T>(total) + sum[v]);
    lanes |= exponents_outside<T>(outside[v]) << (first + v * n);
  }
  return lanes;
}

template <class T, int kCount>
inline std::uint32_t add_exponentials(T* scores, const Part& part, const std::uint32_t* words, bool shifted, const T* shifts,
                                      T* row_sum) {
  if (words != nullptr) return add_exponentials<T, kCount, true, true>(scores, part, words, shifts, row_sum);
  if (shifted) return add_exponentials<T, kCount, true, false>(scores, part, words, shifts, row_sum);
  return add_exponentials<T, kCount, false, false>(scores, part, words, shifts, row_sum);
}

/// A lane that has seen no key has no maximum yet; its shift is 0.
template <class T>
inline typename Simd<T>::V shift_of(typename Simd<T>::V row_max) {
  return row_max == splat<T>(-kInf<T>) ? typename Simd<T>::V{} : row_max;
}

/// The quick way for one chunk; words null: nothing is masked. Returns the lanes that must go by their maximum: where there is
/// one, row_max and row_sum are as before and the scores are lost.
template <class T>
inline std::uint32_t quick_softmax(T* scores, const Parts& parts, const std::uint32_t* words, std::uint32_t seen, T* row_max,
                                   T* row_sum) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V max_before[kVectors], sum_before[kVectors];
  std::uint32_t shifted = 0;
  for (int v = 0; v < kVectors; ++v) {
    max_before[v] = load<T>(row_max + v * n);
    sum_before[v] = load<T>(row_sum + v * n);
    const V shift = shift_of<T>(max_before[v]);
    shifted |= bits_where<T>(shift != V{});
    store<T>(row_max + v * n, shift);
  }
  std::uint32_t failed = 0;
  for (int i = 0; i < parts.count; ++i) {
    const Part& part = parts.part[i];
    failed |= part.count == kVectors ? add_exponentials<T, kVectors>(scores, part, words, shifted != 0, row_max, row_sum)
                                     : add_exponentials<T, 1>(scores, part, words, shifted != 0, row_max, row_sum);
  }
  for (int v = 0; v < kVectors; ++v) {
    const V sum = load<T>(row_sum + v * n);
    failed |= bits_where<T>(sum < splat<T>(kSmallestSum<T>)) << (v * n);
    failed |= (~bits_where<T>(sum <= splat<T>(kLargestSum<T>)) & lane_bits(n)) << (v * n);
  }
  failed &= seen;
  if (failed == 0) return 0;
  for (int v = 0; v < kVectors; ++v) {
    store<T>(row_max + v * n, max_before[v]);
    store<T>(row_sum + v * n, sum_before[v]);
  }
  return failed;
}

/// The same with the lanes `by_maximum` taken by their maximum: scores are -inf in dead lanes, row_max and row_sum move on, and
/// rescale is what the result so far must be multiplied by: exactly 1 where the maximum stayed.
template <class T>
inline void softmax_by_maximum(T* scores, const Parts& parts, std::uint32_t by_maximum, T* row_max, T* row_sum, T* rescale) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V maximum[kVectors], before[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const V sum = load<T>(row_sum + v * n);
    before[v] = sum == V{} ? splat<T>(-kInf<T>) : load<T>(row_max + v * n);  // a sum of 0 holds nothing to keep
    maximum[v] = before[v];
  }
  const auto for_scores = [&](const Part& part, const auto& work) {
    for (Index j = part.lo; j < part.hi; ++j) {
      for (int v = part.first; v < part.first + part.count; ++v) work(scores + j * kStrip<T> + v * n, v);
    }
  };
  for (int i = 0; i < parts.count; ++i) {
    for_scores(parts.part[i], [&](const T* place, int v) { maximum[v] = max_or_second(load<T>(place), maximum[v]); });
  }
  for (int v = 0; v < kVectors; ++v) {
    const std::uint32_t lanes = by_maximum >> (v * n);
    const V factor = before[v] == maximum[v] ? splat<T>(1) : exp2<T>(before[v] - maximum[v]);
    maximum[v] = select_bits<V>(lanes, maximum[v], shift_of<T>(load<T>(row_max + v * n)));
    store<T>(rescale + v * n, select_bits<V>(lanes, factor, splat<T>(1)));
    store<T>(row_max + v * n, maximum[v]);
    store<T>(row_sum + v * n, load<T>(row_sum + v * n) * load<T>(rescale + v * n));
    maximum[v] = shift_of<T>(maximum[v]);
  }
  for (int i = 0; i < parts.count; ++i) {
    V sum[kVectors] = {};
    for_scores(parts.part[i], [&](T* place, int v) {
      const V p = exp2<T>(load<T>(place) - maximum[v]);
      sum[v] += p;
      store<T>(place, p);
    });
    for (int v = 0; v < kVectors; ++v) store<T>(row_sum + v * n, load<T>(row_sum + v * n) + sum[v]);
  }
}

}  // namespace
}  // namespace qkv
