// From q.k to scores of one strip x tile: scale, soft cap, bias, callback, mask, dropout. Lanes are queries, rows are
// keys. Scores are kept in powers of two: s2 = s * log2(e), so that softmax needs exp2 only; the factor is folded into
// the Q^T panel. With a callback everything up to it is in natural units.
//
// How ranges nest: a StripRange (strips.h) is the queries of one strip. Against one chunk of keys it has a LiveRange,
// the keys that any lane may attend. That is cut into at most three VectorRanges: keys x vectors of lanes, so that a
// diagonal does not cost the vector that is past it.
#pragma once

#include <numbers>

#include "kernels/attention/params.h"
#include "kernels/products/gemm.h"
#include "simd/exp2.h"
#include "simd/philox.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

template <class T> constexpr T kLargest = std::numeric_limits<T>::max();
template <class T> constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

constexpr std::uint32_t lane_bits(Index lanes) { return lanes >= 32 ? ~0u : (1u << lanes) - 1u; }

/// The number subtracted from scores: 0 for a maximum of -inf (no key attended), where -inf - -inf would be NaN.
template <class T> inline typename Simd<T>::V shift_of(typename Simd<T>::V maximum) {
  return maximum == splat<T>(-kInf<T>) ? typename Simd<T>::V{} : maximum;
}

/// A bias in powers of two. The lowest finite number, a common mask fill, must not overflow to -inf when multiplied.
template <class T> inline typename Simd<T>::V log2_of_bias(typename Simd<T>::V natural) {
  using V = typename Simd<T>::V;
  V scaled = natural * std::numbers::log2e_v<T>;
  scaled = scaled > kLargest<T> ? splat<T>(kLargest<T>) : scaled;
  scaled = scaled < -kLargest<T> ? splat<T>(-kLargest<T>) : scaled;
  return natural - natural == V{} ? scaled : natural;  // infinity and NaN stay what they are
}

/// Whether a row has a sink that counts; null: none.
template <class T> inline bool has_sink(const T* sink) { return sink != nullptr && *sink > -kInf<T>; }

/// A row's maximum (in powers of two) and sum including the sink; the weights of its keys must be multiplied by
/// `share`.
template <class T> struct WithSink {
  typename Simd<T>::V maximum, sum, share;
};
template <class T> inline WithSink<T> with_sink(T sink, typename Simd<T>::V maximum, typename Simd<T>::V sum) {
  using V = typename Simd<T>::V;
  const V before = sum == V{} ? splat<T>(-kInf<T>) : maximum, sink2 = log2_of_bias<T>(splat<T>(sink));
  const V all = before > sink2 ? before : sink2, shift = shift_of<T>(all);
  const V share = before == all ? splat<T>(1) : exp2<T>(before - shift);
  return {all, fma(sum, share, exp2<T>(sink2 - shift)), share};
}

/// The live keys of a strip x chunk: [lo, hi) after trimming keys that no lane may attend.
struct LiveRange {
  bool any;     // false: no lane attends any key
  bool masked;  // the lane mask counts; otherwise every lane attends every key of [lo, hi)
  Index lo, hi;
};

/// Narrows [lo, hi) past the keys that none of `lanes` may attend.
inline void trim_keys(const std::uint32_t* lane_mask, std::uint32_t lanes, Index& lo, Index& hi) {
  while (lo < hi && (lane_mask[lo] & lanes) == 0) ++lo;
  while (lo < hi && (lane_mask[hi - 1] & lanes) == 0) --hi;
}

/// Whether a bias or a callback may mask pairs: a score of -inf is not kept.
template <class T> inline bool hides_by_value(const ScoreParams<T>& s) {
  return s.bias.data != nullptr || s.mod.apply != nullptr;
}

template <class T>
inline LiveRange live_range(const ScoreParams<T>& s, Index i0, Index ni, Index j0, Index nj, std::uint32_t* lane_mask) {
  const int verdict = s.mask.tile == nullptr
                          ? kTileFull
                          : s.mask.tile(s.mask.mask, s.mask.batch, s.mask.head, i0, ni, j0, nj, lane_mask);
  LiveRange live{verdict != kTileEmpty, verdict == kTilePartial, 0, nj};
  if (live.masked) {
    trim_keys(lane_mask, ~0u, live.lo, live.hi);
    live.any = live.lo < live.hi;
  } else if (live.any && hides_by_value(s)) {
    for (Index j = 0; j < nj; ++j) lane_mask[j] = lane_bits(ni);  // a score of -inf will clear bits
  }
  return live;
}

/// The first multiple of `step` at or after j0 (itself one) whose keys include one that a query may attend; `end`:
/// none.
inline Index live_step(const TileMask& mask, Index q_begin, Index q_count, Index j0, Index end, Index step) {
  if (mask.next_key == nullptr || j0 >= end) return j0;
  const Index next = mask.next_key(mask.mask, mask.batch, mask.head, q_begin, q_count, j0);
  return next < end ? next / step * step : end;
}

/// The keys that some of the queries may attend, from the start of a chunk on.
template <class T> inline KeyRange reach(const ScoreParams<T>& s, Index q_begin, Index q_count, Index chunk) {
  KeyRange keys{0, s.kv_len};
  const TileMask& m = s.mask;
  if (m.key_range != nullptr) m.key_range(m.mask, m.batch, m.head, q_begin, q_count, &keys.begin, &keys.end);
  return {keys.begin / chunk * chunk, keys.end};
}

/// Keys [lo, hi) of a tile for vectors [first, first + count) of a strip.
struct VectorRange {
  Index lo, hi;
  int first, count;
};
struct VectorRanges {
  VectorRange range[3];
  int count;
};

/// The live range, cut so that a vector of lanes is left out where none of its lanes attends: half of the work on a
/// diagonal. A cut is attended in the sums of a row, and depends on the masks of the rows beside it: `invariant` makes
/// none.
template <class T>
inline VectorRanges vector_ranges(const LiveRange& live, int vectors, const std::uint32_t* lane_mask, bool invariant) {
  const VectorRanges whole{{{live.lo, live.hi, 0, vectors}}, 1};
  if (!live.masked || vectors != 2 || invariant) return whole;
  constexpr int n = Simd<T>::kLanes;
  Index lo[2], hi[2];
  for (int v = 0; v < 2; ++v) {
    lo[v] = live.lo;
    hi[v] = live.hi;
    trim_keys(lane_mask, lane_bits(n) << (v * n), lo[v], hi[v]);
  }
  const Index begin = larger(lo[0], lo[1]), end = smaller(hi[0], hi[1]);  // where both attend
  VectorRanges ranges{};
  if (begin >= end) {
    for (int v = 0; v < 2; ++v) {
      if (lo[v] < hi[v]) ranges.range[ranges.count++] = {lo[v], hi[v], v, 1};
    }
    return ranges;
  }
  if (live.lo < begin) ranges.range[ranges.count++] = {live.lo, begin, lo[0] < lo[1] ? 0 : 1, 1};
  ranges.range[ranges.count++] = {begin, end, 0, 2};
  if (end < live.hi) ranges.range[ranges.count++] = {end, live.hi, hi[0] > hi[1] ? 0 : 1, 1};
  return ranges;
}

/// Queries [q_begin, q_begin + count) of rows [.., width] as panels [strip][width][strip], times `factor`.
template <class T>
inline void pack_strips(const T* rows, Index stride, Index q_begin, Index count, Index width, T factor, T* panels) {
  for (Index first = 0; first < count; first += strip_lanes<T>()) {
    pack_transposed<T>(rows + (q_begin + first) * stride, stride, smaller<Index>(strip_lanes<T>(), count - first),
        width, factor, panels + first * width, strip_lanes<T>());
  }
}

/// The unit of scores: powers of two, or natural where a callback reads them.
template <class T> inline T score_unit(const ScoreParams<T>& s) {
  return s.mod.apply == nullptr ? std::numbers::log2e_v<T> : T{1};
}

/// The factor of the Q^T panel: the product then gives scores in their unit or, with a soft cap, tanh's argument.
template <class T> inline T panel_factor(const ScoreParams<T>& s) {
  return s.softcap > 0 ? s.scale / s.softcap : s.scale * score_unit(s);
}

/// Whether a bias has a row for each query with its keys side by side. Such rows are fetched while the products run,
/// chunk by chunk, instead of the next tile's: the hardware does not predict rows a page apart, and they are more than
/// all other rows.
template <class T> inline bool has_rows(const TileBias<T>& bias) {
  return bias.data != nullptr && bias.row_stride != 0 && bias.column_stride == 1;
}

/// panel[j][lane] = bias(i0 + lane, j0 + j) for rows [lo, hi).
template <class T>
inline void load_natural_bias(const TileBias<T>& bias, Index i0, Index ni, Index j0, const LiveRange& live, T* panel) {
  const T* source = bias.data + i0 * bias.row_stride + (j0 + live.lo) * bias.column_stride;
  T* target = panel + live.lo * strip_lanes<T>();
  if (bias.column_stride == 1) {
    pack_transposed<T>(source, bias.row_stride, ni, live.hi - live.lo, T{1}, target, strip_lanes<T>());
    return;
  }
  for (Index j = 0; j < live.hi - live.lo; ++j) {
    for (Index lane = 0; lane < strip_lanes<T>(); ++lane) {
      target[j * strip_lanes<T>() + lane] = lane < ni ? source[lane * bias.row_stride + j * bias.column_stride] : T{0};
    }
  }
}

/// Clears the bits of entries that are -inf, which are not kept, and scales the others to powers of two (kScales).
/// Returns whether any bit was cleared. Rows of the panel lie `row` apart.
template <class T, bool kScales>
inline bool settle_natural(T* panel, Index row, const VectorRange& range, Index ni, std::uint32_t* lane_mask) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  bool cleared = false;
  for (Index j = range.lo; j < range.hi; ++j) {
    std::uint32_t infinite = 0;
    for (int v = range.first; v < range.first + range.count; ++v) {
      T* target = panel + j * row + v * n;
      const V natural = load<T>(target);
      if (kScales) store<T>(target, log2_of_bias<T>(natural));
      infinite |= bits_where<T>(natural == splat<T>(-kInf<T>)) << (v * n);
    }
    infinite &= lane_bits(ni);
    cleared |= infinite != 0;
    lane_mask[j] &= ~infinite;
  }
  return cleared;
}

/// load_added in two passes. Not inlined: a call with a finite bias alone must not pay for it.
template <class T> [[gnu::noinline]] bool load_settled(
    const ScoreParams<T>& s, Index i0, Index ni, Index j0, const LiveRange& live, T* panel, std::uint32_t* lane_mask) {
  load_natural_bias(s.bias, i0, ni, j0, live, panel);
  for (Index j = live.lo; s.position != nullptr && j < live.hi; ++j) {
    for (Index lane = 0; lane < ni; ++lane) panel[j * strip_lanes<T>() + lane] += s.position[j0 + j - i0 - lane];
  }
  const VectorRange whole{live.lo, live.hi, 0, live_vectors<T>(ni)};
  return s.mod.apply == nullptr ? settle_natural<T, true>(panel, strip_lanes<T>(), whole, ni, lane_mask)
                                : settle_natural<T, false>(panel, strip_lanes<T>(), whole, ni, lane_mask);
}

/// panel[j][lane] = all that is added to the score of query i0 + lane and key j0 + j, in its unit, for keys [lo, hi). A
/// bias of -inf clears its bit; returns whether any did.
template <class T> inline bool load_added(
    const ScoreParams<T>& s, Index i0, Index ni, Index j0, const LiveRange& live, T* panel, std::uint32_t* lane_mask) {
  const TileBias<T>& bias = s.bias;
  if (s.position == nullptr && s.mod.apply == nullptr && bias.column_stride == 1) {  // one pass where it is finite
    const T* source = bias.data + i0 * bias.row_stride + j0 + live.lo;
    if (pack_transposed_finite<T>(source, bias.row_stride, ni, live.hi - live.lo, std::numbers::log2e_v<T>,
            panel + live.lo * strip_lanes<T>(), strip_lanes<T>())) {
      return false;
    }
  }
  return load_settled(s, i0, ni, j0, live, panel, lane_mask);
}

/// Applies the callback to the natural scores of one range and scales to powers of two. Clears bits as load_added does.
/// slopes [keys][strip] or null.
template <class T> [[gnu::noinline]] bool modify_scores(const ScoreParams<T>& s, Index i0, Index ni, Index j0,
    const VectorRange& range, T* scores, Index row, T* slopes, std::uint32_t* lane_mask) {
  const Index first = range.first * Simd<T>::kLanes, lanes = smaller<Index>(range.count * Simd<T>::kLanes, ni - first);
  T* const slopes_of_range = slopes == nullptr ? nullptr : slopes + range.lo * strip_lanes<T>() + first;
  s.mod.apply(s.mod.mod, s.mod.batch, s.mod.head, i0 + first, lanes, j0 + range.lo, range.hi - range.lo,
      scores + range.lo * row + first, 1, row, slopes_of_range, 1, strip_lanes<T>());
  return settle_natural<T, true>(scores, row, range, ni, lane_mask);
}

/// The live keys of a tile, and the ranges that score_tile has written.
struct ScoreTile {
  LiveRange live;
  VectorRanges ranges;
};

/// scores[j][lane] = s2 of query i0 + lane and key j0 + j within the ranges of the result; masked lanes hold anything.
/// multiply(range) writes the products k.q, scaled by panel_factor. Not inlined: inlined, the loop over a bias was 8 %
/// slower.
template <class T, class Multiply> [[gnu::noinline]] ScoreTile score_tile(const ScoreParams<T>& s, Index i0, Index ni,
    Index j0, Index nj, T* scores, T* bias, std::uint32_t* lane_mask, const Multiply& multiply) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  LiveRange live = live_range(s, i0, ni, j0, nj, lane_mask);
  if (!live.any) return {live, {}};
  const int vectors = live_vectors<T>(ni);
  const bool biased = s.bias.data != nullptr;
  if (biased) live.masked |= load_added(s, i0, ni, j0, live, bias, lane_mask);
  const VectorRanges ranges = vector_ranges<T>(live, vectors, lane_mask, s.invariant);
  const V cap = splat<T>(s.softcap * score_unit(s));
  for (int i = 0; i < ranges.count; ++i) {
    const VectorRange& range = ranges.range[i];
    multiply(range);
    if (!biased && s.softcap == 0) continue;
    for (Index j = range.lo; j < range.hi; ++j) {
      for (int v = range.first; v < range.first + range.count; ++v) {
        T* target = scores + j * strip_lanes<T>() + v * n;
        V x = load<T>(target);
        if (s.softcap > 0) x = cap * tanh<T>(x);
        if (biased) x += load<T>(bias + j * strip_lanes<T>() + v * n);
        store<T>(target, x);
      }
    }
  }
  for (int i = 0; s.mod.apply != nullptr && i < ranges.count; ++i) {
    live.masked |= modify_scores<T>(s, i0, ni, j0, ranges.range[i], scores, strip_lanes<T>(), nullptr, lane_mask);
  }
  return {live, ranges};
}

/// kept[j] = the lanes whose weight (i0 + lane, j0 + j) survives dropout, for keys [lo, hi). Philox counter:
/// attention.h.
template <class T> inline void dropout_mask(
    const TileDropout& dropout, Index i0, Index ni, Index j0, Index lo, Index hi, std::uint32_t* kept) {
  constexpr int lanes = Simd<float>::kLanes;  // of a U32
  const int parts = static_cast<int>((ni + lanes - 1) / lanes);
  const PhiloxRounds rounds(dropout.key0, dropout.key1);
  U32 lane_number{};
  for (int lane = 0; lane < lanes; ++lane) lane_number[lane] = static_cast<std::uint32_t>(lane);
  const Index first = (j0 + lo) / 8, last = (j0 + hi - 1) / 8;
  for (Index group = first; group <= last; ++group) {
    std::uint32_t bits[8] = {};
    for (int part = 0; part < parts; ++part) {
      U32 words[4] = {lane_number + static_cast<std::uint32_t>(i0 + part * lanes),
          U32{} + static_cast<std::uint32_t>(group), U32{} + dropout.sequence_head, U32{}};
      philox(words, rounds);
      for (int half = 0; half < 8; ++half) {
        const U32 value = half % 2 == 0 ? words[half / 2] & 0xFFFFu : words[half / 2] >> 16;
        // Dropped iff value < threshold: both are at most 2^16, so the sign of the difference decides.
        const std::uint32_t dropped = sign_bits(reinterpret_cast<I32>(value - dropout.threshold));
        bits[half] |= (~dropped & lane_bits(lanes)) << (part * lanes);
      }
    }
    for (int half = 0; half < 8; ++half) {
      const Index j = group * 8 + half - j0;
      if (j >= lo && j < hi) kept[j] = bits[half];
    }
  }
}

/// Dropout's factor of a kept weight, 1 / (1 - p); 0 when everything is dropped.
template <class T> inline T kept_factor(const TileDropout& dropout) {
  if (dropout.threshold >= 65536) return 0;
  return T{65536} / static_cast<T>(65536 - dropout.threshold);
}

/// The sum of 0 * x over a row: NaN when the row holds NaN or infinity.
template <class T> inline typename Simd<T>::V nonfinite_mark(const T* row, Index width) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V sum{};
  Index d = 0;
  for (; d + n <= width; d += n) sum = fma(load<T>(row + d), V{}, sum);
  if (d < width) sum = fma(load_tail<T>(row + d, static_cast<int>(width - d)), V{}, sum);
  return sum;
}

template <class T> inline bool holds_nonfinite(const T* rows, Index stride, Index count, Index width) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  V sums[4] = {};  // independent chains: an FMA has a latency of four cycles
  for (Index i = 0; i < count; ++i) {
    const T* row = rows + i * stride;
    Index d = 0;
    for (; d + 4 * n <= width; d += 4 * n) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sums[c] = fma(load<T>(row + d + c * n), V{}, sums[c]);
    }
    if (d < width) sums[0] += nonfinite_mark<T>(row + d, width - d);
  }
  const V sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return bits_where<T>(sum != sum) != 0;
}

/// Whether a row of [lo, hi) that some lane may not attend holds NaN or infinity. 0 * NaN is NaN, so such a tile takes
/// the per-lane path.
template <class T> inline bool hides_nonfinite(const T* rows, Index stride, Index width, const LiveRange& live,
    std::uint32_t all, const std::uint32_t* lane_mask) {
  typename Simd<T>::V sum{};
  for (Index j = live.lo; j < live.hi; ++j) {
    if ((lane_mask[j] & all) != all) sum += nonfinite_mark<T>(rows + j * stride, width);
  }
  return bits_where<T>(sum != sum) != 0;
}

}  // namespace
}  // namespace qkv
