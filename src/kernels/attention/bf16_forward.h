// Attention forward on products of bf16 pairs: K is read in its natural rows, two numbers to a 32-bit word, Q^T is packed in
// pairs along D, V once per chunk in pairs of keys, and the weights are rounded to bf16 before the product with V. Sums,
// softmax and lse are float. The same code runs on AMX tiles; Terms<BFloat16> holds the difference (amx_terms.h). Not: backward
// (bf16_backward.h); a matrix of weights, which the float kernels compute (widened_rows.h).
#pragma once

#include "kernels/attention/widened_rows.h"
#include "kernels/products/bf16_terms.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct Bf16ForwardScratch {
  WidenedForwardScratch widened;  // its panels, and v as float where a mask may hide NaN
  Carver carver;
  Index pairs = widened.tile.keys / 2, v_head_dim = widened.tile.v_head_dim;
  std::uint32_t* v_pairs = carver.take<std::uint32_t>(pairs * v_head_dim);            // [pairs][Dv]; for AMX tiles [Dv][pairs]
  std::uint32_t* p_pairs = carver.take<std::uint32_t>(pairs * strip_lanes<float>());  // [pairs][strip]
  PairStrides v_strides = Terms<BFloat16>::kAmxTiles ? PairStrides{1, pairs} : PairStrides{v_head_dim, 1};
  std::size_t bytes = carver.used();

  Bf16ForwardScratch(void* base, Index d, Index dv) : widened(base, d, dv), carver(base, widened.bytes) {}
};

/// Rows and products of forward_tile on pairs. WidenedRows provides what is float: out, and v where a mask may hide NaN or
/// infinity.
struct Bf16Rows : WidenedRows<BFloat16> {
  static constexpr bool kSets = false;
  const Bf16ForwardScratch& pairs;

  Bf16Rows(const ForwardTile<BFloat16>& tile, const Bf16ForwardScratch& scratch)
      : WidenedRows<BFloat16>(tile, scratch.widened), pairs(scratch) {}

  std::uint32_t* q_pairs(const StripRange& r) const {
    return reinterpret_cast<std::uint32_t*>(w.tile.q_panels + r.strip * strip_lanes<float>() * t.scores.head_dim);
  }

  void pack_queries(const ForwardTile<float>&, const ForwardScratch<float>&, const StripRange& r) const {
    const TileScores<BFloat16>& s = t.scores;
    pack_pairs(s.q + r.i0 * s.q_stride, s.q_stride, r.ni, s.head_dim, strip_lanes<float>(), q_pairs(r));
  }
  void take_keys(ForwardTile<float>&, Index, Index) const {}
  void take_values(ForwardTile<float>& f, Index j0, Index nj) const {
    const BFloat16* const rows = t.v + j0 * t.v_stride;
    if constexpr (Terms<BFloat16>::kAmxTiles) {
      pair_up_columns(rows, t.v_stride, nj, t.v_head_dim, pairs.v_strides.column, pairs.v_pairs);
    } else {
      pair_up_rows(rows, t.v_stride, nj, t.v_head_dim, t.v_head_dim, pairs.v_pairs);
    }
    const bool may_hide = t.scores.mask.tile != nullptr || hides_by_value(t.scores);
    if (may_hide) WidenedRows<BFloat16>::take_values(f, j0, nj);
  }

  ScoreTile score(const ForwardTile<float>& f, const ForwardScratch<float>& panels, const StripRange& r, Index j0, Index nj,
                  float* scores) const {
    const TileScores<BFloat16>& s = t.scores;
    const float factor = panel_factor(f.scores);
    return score_tile(f.scores, r.i0, r.ni, j0, nj, scores, panels.bias, panels.lane_mask, [&](const VectorRange& range) {
      // scores[j, lane] = factor * sum_d k[j, d] * q[lane, d]
      product_vectors<BFloat16, Store::kScale>({.a = s.k + (j0 + range.lo) * s.k_stride,
                                                .a_row = s.k_stride,
                                                .a_depth = 2,
                                                .b = q_pairs(r),
                                                .b_row = strip_lanes<float>(),
                                                .c = scores + range.lo * strip_lanes<float>(),
                                                .c_row = strip_lanes<float>(),
                                                .depth = s.head_dim,
                                                .factor = &factor,
                                                .ahead = f.ahead},
                                               range.hi - range.lo, range.first, range.count);
    });
  }

  void add_values(const ForwardTile<float>& f, const StripRange&, const VectorRange& range, Index j0, Index nj, const float* p,
                  float* out) const {
    round_range(range, p);
    const PairSpan steps = whole_steps(range.lo, range.hi);
    // A key next to the range, in the same step of the product, may be NaN, and 0 * NaN is NaN.
    if (hold_nonfinite(j0, 2 * steps.begin, range.lo) || hold_nonfinite(j0, range.hi, smaller(nj, 2 * steps.end))) {
      multiply_kept(
          range, steps, [](Index) { return ~0u; }, out);
      return;
    }
    // out[d, lane] += sum_j v[j, d] * p[j, lane]
    product_vectors<BFloat16, Store::kAdd>(
        {.a = reinterpret_cast<const BFloat16*>(pairs.v_pairs + steps.begin * pairs.v_strides.pair),
         .a_row = 2 * pairs.v_strides.column,
         .a_depth = 2 * pairs.v_strides.pair,
         .b = pairs.p_pairs + steps.begin * strip_lanes<float>(),
         .b_row = strip_lanes<float>(),
         .c = out,
         .c_row = strip_lanes<float>(),
         .depth = 2 * (steps.end - steps.begin),
         .ahead = f.ahead},
        t.v_head_dim, range.first, range.count);
  }
  void add_kept_values(const ForwardTile<float>&, const ForwardScratch<float>&, const VectorRange& range, Index, Index,
                       const float* p, float* out) const {
    round_range(range, p);
    multiply_kept(
        range, whole_steps(range.lo, range.hi), [&](Index j) { return w.tile.lane_mask[j]; }, out);
  }

 private:
  void round_range(const VectorRange& range, const float* p) const {
    round_pairs_of_rows(p, strip_lanes<float>(), range.lo, range.hi, range.first, range.count, pairs.p_pairs);
  }
  /// Whether v of keys [begin, end) of the chunk holds NaN or infinity.
  bool hold_nonfinite(Index j0, Index begin, Index end) const {
    return begin < end && holds_nonfinite(t.v + (j0 + begin) * t.v_stride, t.v_stride, end - begin, t.v_head_dim);
  }

  /// out[d, lane] += the same sum over the keys of the range that the lane attends, by lane_mask(j): for NaN or infinity behind
  /// the mask. In the order and rounding of the product, where p = 0 adds nothing.
  template <class LaneMask>
  void multiply_kept(const VectorRange& range, PairSpan steps, const LaneMask& lane_mask, float* out) const {
    constexpr int n = Simd<float>::kLanes;
    const F32 lower_half = as_f32(U32{} + 0xFFFFu), upper_half = as_f32(U32{} + 0xFFFF0000u);
    const auto lanes_of = [&](Index j, int v) { return j >= range.lo && j < range.hi ? lane_mask(j) >> (v * n) : 0u; };
    for (Index d = 0; d < t.v_head_dim; ++d) {
      for (int v = range.first; v < range.first + range.count; ++v) {
        Chain<BFloat16> chain;
        for (Index k = steps.begin; k < steps.end; ++k) {
          const U32 lower = as_u32(select_bits<F32>(lanes_of(2 * k, v), lower_half, F32{}));
          const U32 upper = as_u32(select_bits<F32>(lanes_of(2 * k + 1, v), upper_half, F32{}));
          const U32 a = pairs.v_pairs[k * pairs.v_strides.pair + d * pairs.v_strides.column] & (lower | upper);
          chain.add(2 * k, a, load_u32(pairs.p_pairs + k * strip_lanes<float>() + v * n));
        }
        float* place = out + d * strip_lanes<float>() + v * n;
        store<float>(place, load<float>(place) + chain.total());
      }
    }
  }
};

template <class Observer>
inline void forward_bf16_observed(const ForwardTile<BFloat16>& t, void* scratch, const Observer& observer) {
  if (t.v == nullptr && t.weights != nullptr) {
    forward_widened_observed(t, scratch, observer);
    return;
  }
  const Bf16ForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  ForwardTile<float> f = float_forward(t);
  f.v = t.v == nullptr ? nullptr : w.widened.v;
  f.weights = f.exponentials = nullptr;  // the float kernels compute them, below
  forward_tile(f, w.widened.tile, Bf16Rows(t, w), observer);
  if (t.weights == nullptr) return;
  float unused_lse[kStripsPerTile * strip_lanes<float>()];
  ForwardTile<BFloat16> weights = t;
  weights.v = nullptr;
  weights.lse = unused_lse;
  weights.lse_low = weights.row_max2 = weights.row_sum = weights.exponentials = nullptr;
  forward_widened(weights, scratch);
}

inline void forward_bf16(const ForwardTile<BFloat16>& t, void* scratch) { forward_bf16_observed(t, scratch, NoObserver{}); }

}  // namespace
}  // namespace qkv
#endif
