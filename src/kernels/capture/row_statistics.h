// Statistics of the rows of a forward tile, gathered while it runs, without a second sweep: entropy, distance, the
// largest weight, the weights of three keys; one number per row each. Sums are relative to the current shift of the
// online softmax and are rescaled with it. Entropy online: E = sum_j p (s2 - largest), whose terms are small where p
// counts, so that H = log(l) - ln2 (E / l + largest - shift).
#pragma once

#include "kernels/attention/softmax.h"
#include "kernels/attention/strips.h"
#include "kernels/capture/params.h"

namespace qkv {
namespace {

/// Of one chunk and strip, [strip].
template <class T> struct RowStatisticsScratch {
  Carver carver;
  T* exponents = carver.array<T>(strip_lanes<T>());
  T* distances = carver.array<T>(strip_lanes<T>());
  T* largest_before = carver.array<T>(strip_lanes<T>());  // largest and row_sum before the chunk
  T* sum_before = carver.array<T>(strip_lanes<T>());
  T* distance = carver.array<T>(strip_lanes<T>());  // position - j0
  T* anchor = carver.array<T>(strip_lanes<T>());    // largest with the chunk, 0 where there is none
  std::size_t bytes = carver.used();

  explicit RowStatisticsScratch(void* base) : carver(base) {}
};

template <class T> class RowStatisticsObserver {
  using V = typename Simd<T>::V;
  static constexpr int n = Simd<T>::kLanes;

 public:
  RowStatisticsObserver(const RowSums<T>& sums, const RowStatisticsScratch<T>& scratch) : t_(sums), w_(scratch) {}

  /// The sums of one range of a chunk, in registers.
  template <int kCount> struct Vectors {
    V exponents[kCount], distances[kCount], distance[kCount], anchor[kCount];

    /// One key of vector v: its score, -inf where dead, and p.
    void observe(int v, V score, V p) {
      // An exponent of -inf would make NaN of 0 * -inf; what is below the lowest counts for nothing.
      exponents[v] = fma(p, max_or_second(splat<T>(Exp2Poly<T>::kLowest), score - anchor[v]), exponents[v]);
      distances[v] = fma(p, magnitude(distance[v]), distances[v]);
      distance[v] -= T{1};
    }
  };

  void start_strip(const StripRange& r) const {
    const Index first = r.strip * strip_lanes<T>();
    for (Index lane = first; lane < first + strip_lanes<T>(); ++lane) {
      t_.exponents[lane] = t_.distances[lane] = t_.self[lane] = t_.previous[lane] = t_.first[lane] = t_.sums[lane] = 0;
      t_.largest[lane] = -kInf<T>;
      t_.largest_key[lane] = -1;
    }
  }

  /// Of the scores of a chunk; lane_mask null: nothing is masked.
  void start_chunk(const StripRange& r, Index j0, const VectorRanges& ranges, const std::uint32_t* lane_mask,
      const T* scores, const T* row_sum) const {
    const Index first = r.strip * strip_lanes<T>();
    __builtin_memcpy(w_.largest_before, t_.largest + first, strip_lanes<T>() * sizeof(T));
    __builtin_memcpy(w_.sum_before, row_sum, strip_lanes<T>() * sizeof(T));
    for (Index lane = 0; lane < strip_lanes<T>(); ++lane)
      w_.distance[lane] = static_cast<T>(r.i0 + t_.offset - j0 + lane);
    for (int i = 0; i < ranges.count; ++i) {
      const VectorRange& range = ranges.range[i];
      for (int v = range.first; v < range.first + range.count; ++v) {
        const V before = load<T>(t_.largest + first + v * n);
        V largest = before;
        for (Index j = range.lo; j < range.hi; ++j) {
          V x = load<T>(scores + j * strip_lanes<T>() + v * n);
          if (lane_mask != nullptr) x = select_bits<V>(lane_mask[j] >> (v * n), x, splat<T>(-kInf<T>));
          largest = max_or_second(x, largest);
        }
        const std::uint32_t risen = bits_where<T>(largest > before);
        if (risen == 0) continue;
        store<T>(t_.largest + first + v * n, largest);
        find_keys(range, v, lane_mask, scores, largest, risen, t_.largest_key + first + v * n, j0);
      }
    }
    for (int lane = 0; lane < strip_lanes<T>(); lane += n) {
      store<T>(w_.anchor + lane, shift_of<T>(load<T>(t_.largest + first + lane)));
    }
  }

  void clear() const {
    for (int lane = 0; lane < strip_lanes<T>(); lane += n) {
      store<T>(w_.exponents + lane, V{});
      store<T>(w_.distances + lane, V{});
    }
  }

  template <class, int kCount> Vectors<kCount> open(const VectorRange& range) const {
    Vectors<kCount> sums;
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      const int lane = (range.first + v) * n;
      sums.exponents[v] = load<T>(w_.exponents + lane);
      sums.distances[v] = load<T>(w_.distances + lane);
      sums.distance[v] = load<T>(w_.distance + lane) - splat<T>(static_cast<T>(range.lo));
      sums.anchor[v] = load<T>(w_.anchor + lane);
    }
    return sums;
  }
  template <int kCount> void close(const VectorRange& range, const Vectors<kCount>& sums) const {
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      const int lane = (range.first + v) * n;
      store<T>(w_.exponents + lane, sums.exponents[v]);
      store<T>(w_.distances + lane, sums.distances[v]);
    }
  }

  /// The chunk's exponentials are p; row_sum has them. `moved`: what the sums before it are multiplied by, null for 1.
  void end_chunk(const StripRange& r, Index j0, const LiveRange& live, const std::uint32_t* lane_mask, const T* p,
      const T* row_sum, const T* moved) const {
    const Index first = r.strip * strip_lanes<T>();
    __builtin_memcpy(t_.sums + first, row_sum, strip_lanes<T>() * sizeof(T));
    for (int v = 0; v < kVectors; ++v) {
      const int lane = v * n;
      const Index row = first + lane;
      const V factor = moved == nullptr ? splat<T>(1) : load<T>(moved + lane);
      const V before = load<T>(w_.sum_before + lane);
      const V step = load<T>(w_.largest_before + lane) - load<T>(t_.largest + row);  // of every s2 - largest
      V carried = fma(step, before, load<T>(t_.exponents + row)) * factor;
      carried = before == V{} ? V{} : carried;  // nothing was there, and the step is infinite
      store<T>(t_.exponents + row, carried + load<T>(w_.exponents + lane));
      store<T>(t_.distances + row, fma(load<T>(t_.distances + row), factor, load<T>(w_.distances + lane)));
      for (T* one : {t_.self, t_.previous, t_.first}) store<T>(one + row, load<T>(one + row) * factor);
    }
    const auto pick = [&](T* rows, Index j, Index lane) {
      if (lane < 0 || lane >= r.ni || j < j0 + live.lo || j >= j0 + live.hi) return;
      if (live.masked && (lane_mask[j - j0] >> lane & 1u) == 0) return;
      rows[first + lane] = p[(j - j0) * strip_lanes<T>() + lane];
    };
    if (j0 == 0) {
      for (Index lane = 0; lane < r.ni; ++lane) pick(t_.first, 0, lane);
    }
    const Index position = r.i0 + t_.offset;
    for (Index j = larger(position - 1, j0); j < smaller(position + r.ni, j0 + live.hi); ++j) {
      pick(t_.self, j, j - position);
      pick(t_.previous, j, j - position + 1);
    }
  }

  /// After finish_strip: the weights of row i are p * inverse[i].
  void finish(const StripRange& r, const T* shift, const T* inverse) const {
    const Index first = r.strip * strip_lanes<T>();
    for (Index lane = 0; lane < r.ni; ++lane) {
      t_.shift[first + lane] = shift[lane];
      t_.inverse[first + lane] = inverse[lane];
    }
  }

 private:
  /// keys[lane] = j0 + the first key of the range with the score `largest`, for the lanes of vector v that are
  /// `wanted`.
  static void find_keys(const VectorRange& range, int v, const std::uint32_t* lane_mask, const T* scores, V largest,
      std::uint32_t wanted, Index* keys, Index j0) {
    for (Index j = range.lo; j < range.hi && wanted != 0; ++j) {
      std::uint32_t found = bits_where<T>(load<T>(scores + j * strip_lanes<T>() + v * n) == largest) & wanted;
      if (lane_mask != nullptr) found &= lane_mask[j] >> (v * n);
      wanted &= ~found;
      for (; found != 0; found &= found - 1) keys[__builtin_ctz(found)] = j0 + j;
    }
  }

  static V magnitude(V x) {
    constexpr auto sign = static_cast<typename Simd<T>::Int>(
        typename std::make_unsigned<typename Simd<T>::Int>::type{1} << (8 * sizeof(T) - 1));
    return reinterpret_cast<V>(reinterpret_cast<typename Simd<T>::I>(x) & ~sign);
  }

  const RowSums<T>& t_;
  const RowStatisticsScratch<T>& w_;
};

}  // namespace
}  // namespace qkv
