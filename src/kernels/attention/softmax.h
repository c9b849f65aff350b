// Online softmax of one strip, chunk by chunk: scores in powers of two become weights p, not yet divided by their sum.
// Each lane takes one of two paths, chosen by its own data only, so that no lane's result depends on the others:
//   fast: p = exp2(s2 - shift), a fixed shift, 0 at first. No running maximum, no rescaling: exponents and the sum are
//     checked to stay in a safe range.
//   by maximum: the shift is the running maximum, and sums are rescaled where it moves (Milakov & Gimelshein
//     2018, 1805.02867). A lane stays here once it fails the check; a strip whose first tile is masked may start here
//     (starts_quickly, forward.h).
#pragma once

#include "kernels/attention/scores.h"

namespace qkv {
namespace {

/// Safe range of a row's sum on the fast path. Outside it p * v may overflow or underflow where the formula's p <= 1
/// would not.
template <class T> constexpr T kLargestSum = T{0x1p30} * T{0x1p30};
template <class T> constexpr T kSmallestSum = T{1} / T{256};

/// The lanes whose shift costs accuracy: far below 0 it rounds s2 - shift where s2 is near 0, by 4 eps from an exponent
/// of 16 on, more than the bound of such weights allows. They are lanes whose exponents reach 15 and whose sum says
/// that the largest s2 is within 8 of 0; they go by their maximum.
template <class T> inline std::uint32_t rounded_by_shift(typename Simd<T>::V shift, typename Simd<T>::V sum) {
  const std::uint32_t far = bits_where<T>(shift < splat<T>(-12)) & bits_where<T>(sum > splat<T>(32768));
  if (far == 0) return 0;
  const typename Simd<T>::V whole = sum * exp2<T>(shift);
  return far & bits_where<T>(whole < splat<T>(256)) & bits_where<T>(whole > splat<T>(T{1} / 256));
}

/// Exponentials are summed in two levels, this many keys at a time: one running sum of n equal terms drifts by up to
/// eps n / 4, two levels keep 128 of them within 4 eps. Counted from the chunk's first key, so that a row's sums do not
/// depend on where the rows beside it begin.
constexpr Index kKeysOfSum = 16;

/// The cases of add_exponentials, each with all that the ones before it handle.
enum class Exponents {
  kPlain,     // every shift is 0
  kShifted,   // shifts
  kMasked,    // lanes that may not attend a key
  kByMaximum  // exponents below the range, which give 0
};

/// The observer policy: forward shows it the scores and weights that it computes (RowStatisticsObserver). This one
/// ignores them and costs nothing.
struct NoObserver {
  struct Vectors {
    template <class... Values> void observe(const Values&...) {}
  };
  template <class... Strip> void start_strip(const Strip&...) const {}
  template <class... Chunk> void start_chunk(const Chunk&...) const {}
  void clear() const {}
  template <class T, int kCount> Vectors open(const VectorRange&) const { return {}; }
  void close(const VectorRange&, const Vectors&) const {}
  template <class... Chunk> void end_chunk(const Chunk&...) const {}
  template <class... Row> void finish(const Row&...) const {}
};

/// Replaces the scores of one range by p = exp2(s2 - shift), 0 in masked lanes, and adds p to row_sum. Returns the
/// lanes with an exponent out of range.
template <class T, int kCount, Exponents kKind, class Observer> inline std::uint32_t add_exponentials(T* scores,
    const VectorRange& range, const std::uint32_t* lane_mask, const T* shifts, T* row_sum, const Observer& observer) {
  using V = typename Simd<T>::V;
  using U = typename Simd<T>::U;
  constexpr int n = Simd<T>::kLanes;
  const int first = range.first * n;
  V shift[kCount], sum[kCount];
  U outside[kCount];
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) {
    shift[v] = load<T>(shifts + first + v * n);
    sum[v] = V{};
    outside[v] = U{};
  }
  auto observed = observer.template open<T, kCount>(range);
  for (Index begin = range.lo, end; begin < range.hi; begin = end) {
    end = smaller((begin / kKeysOfSum + 1) * kKeysOfSum, range.hi);
    V some[kCount]{};
    for (Index j = begin; j < end; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) {
        T* target = scores + j * strip_lanes<T>() + first + v * n;
        V score = load<T>(target), y = score;
        if constexpr (kKind != Exponents::kPlain) y -= shift[v];
        U strange;
        V p = exp2_in_range<T>(y, strange);
        if constexpr (kKind == Exponents::kByMaximum) p = exp2<T>(y);
        if (kKind == Exponents::kMasked || (kKind == Exponents::kByMaximum && lane_mask != nullptr)) {
          const std::uint32_t bits = lane_mask[j] >> (first + v * n);
          p = select_bits<V>(bits, p, V{});
          score = select_bits<V>(bits, score, splat<T>(-kInf<T>));
          strange = reinterpret_cast<U>(select_bits<V>(bits, reinterpret_cast<V>(strange), V{}));
        }
        outside[v] |= strange;
        some[v] += p;
        store<T>(target, p);
        observed.observe(v, score, p);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) sum[v] += some[v];
  }
  observer.close(range, observed);
  std::uint32_t lanes = 0;
#pragma GCC unroll 4
  for (int v = 0; v < kCount; ++v) {
    T* total = row_sum + first + v * n;
    store<T>(total, load<T>(total) + sum[v]);
    lanes |= exponents_outside<T>(outside[v]) << (first + v * n);
  }
  return lanes;
}

template <class T, Exponents kKind, class Observer> inline std::uint32_t add_exponentials(T* scores,
    const VectorRanges& ranges, const std::uint32_t* lane_mask, const T* shifts, T* row_sum, const Observer& observer) {
  observer.clear();
  std::uint32_t lanes = 0;
  for (int i = 0; i < ranges.count; ++i) {
    const VectorRange& range = ranges.range[i];
    lanes |= range.count == kVectors
                 ? add_exponentials<T, kVectors, kKind>(scores, range, lane_mask, shifts, row_sum, observer)
                 : add_exponentials<T, 1, kKind>(scores, range, lane_mask, shifts, row_sum, observer);
  }
  return lanes;
}

/// Updates row_max of the lanes `by_maximum` with the scores of the ranges and rescales row_sum. `rescale` is the
/// factor of the output so far: exactly 1 where the maximum did not move, and in all other lanes.
template <class T> inline void move_maximum(const T* scores, const VectorRanges& ranges, const std::uint32_t* lane_mask,
    std::uint32_t by_maximum, T* row_max, T* row_sum, T* rescale) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V maximum[kVectors], before[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const V sum = load<T>(row_sum + v * n);
    before[v] = sum == V{} ? splat<T>(-kInf<T>) : load<T>(row_max + v * n);  // a sum of 0: nothing to rescale
    maximum[v] = before[v];
  }
  for (int i = 0; i < ranges.count; ++i) {
    const VectorRange& range = ranges.range[i];
    for (Index j = range.lo; j < range.hi; ++j) {
      for (int v = range.first; v < range.first + range.count; ++v) {
        V x = load<T>(scores + j * strip_lanes<T>() + v * n);
        if (lane_mask != nullptr) x = select_bits<V>(lane_mask[j] >> (v * n), x, splat<T>(-kInf<T>));
        maximum[v] = max_or_second(x, maximum[v]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const std::uint32_t lanes = by_maximum >> (v * n);
    const V factor = before[v] == maximum[v] ? splat<T>(1) : exp2<T>(before[v] - maximum[v]);
    const V moved = select_bits<V>(lanes, factor, splat<T>(1));
    store<T>(rescale + v * n, moved);
    store<T>(row_max + v * n, select_bits<V>(lanes, maximum[v], load<T>(row_max + v * n)));
    store<T>(row_sum + v * n, load<T>(row_sum + v * n) * moved);
  }
}

/// One step of the online softmax: scores of a chunk become weights, row_max and row_sum are updated. lane_mask null:
/// nothing is masked. Returns the lanes, none of `by_maximum`, that left the fast path: if there are any, row_max and
/// row_sum are unchanged, the scores are lost, and the caller repeats the chunk. rescale is written only where
/// by_maximum is not 0.
template <class T, class Observer> inline std::uint32_t chunk_softmax(T* scores, const VectorRanges& ranges,
    const std::uint32_t* lane_mask, std::uint32_t attended, std::uint32_t by_maximum, T* row_max, T* row_sum,
    T* rescale, const Observer& observer) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V max_before[kVectors], sum_before[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    max_before[v] = load<T>(row_max + v * n);
    sum_before[v] = load<T>(row_sum + v * n);
  }
  if (by_maximum != 0) move_maximum(scores, ranges, lane_mask, by_maximum, row_max, row_sum, rescale);
  alignas(64) T shifts[strip_lanes<T>()];  // 0 where no key was attended yet
  std::uint32_t shifted = 0;
  for (int v = 0; v < kVectors; ++v) {
    const V m = load<T>(row_max + v * n);
    const V shift = shift_of<T>(m);
    shifted |= bits_where<T>(shift != V{});
    store<T>(shifts + v * n, shift);
  }
  std::uint32_t failed;
  if (by_maximum != 0) {
    failed = add_exponentials<T, Exponents::kByMaximum>(scores, ranges, lane_mask, shifts, row_sum, observer);
  } else if (lane_mask != nullptr) {
    failed = add_exponentials<T, Exponents::kMasked>(scores, ranges, lane_mask, shifts, row_sum, observer);
  } else if (shifted != 0) {
    failed = add_exponentials<T, Exponents::kShifted>(scores, ranges, lane_mask, shifts, row_sum, observer);
  } else {
    failed = add_exponentials<T, Exponents::kPlain>(scores, ranges, lane_mask, shifts, row_sum, observer);
  }
  for (int v = 0; v < kVectors; ++v) {
    const V sum = load<T>(row_sum + v * n), shift = load<T>(shifts + v * n);
    failed |= bits_where<T>(sum < splat<T>(kSmallestSum<T>)) << (v * n);
    failed |= (~bits_where<T>(sum <= splat<T>(kLargestSum<T>)) & lane_bits(n)) << (v * n);
    failed |= rounded_by_shift<T>(shift, sum) << (v * n);
  }
  failed &= attended & ~by_maximum;
  for (int v = 0; v < kVectors; ++v) {
    if (failed != 0) store<T>(row_sum + v * n, sum_before[v]);
    // A lane on the fast path keeps its shift for good, also a shift of 0.
    const V moved = select_bits<V>(by_maximum >> (v * n), load<T>(row_max + v * n), load<T>(shifts + v * n));
    store<T>(row_max + v * n, failed != 0 ? max_before[v] : moved);
  }
  return failed;
}

}  // namespace
}  // namespace qkv
