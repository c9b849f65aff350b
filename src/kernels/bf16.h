// Attention forward on products of bf16 pairs: K is read in its natural rows, two numbers to a 32-bit word, Q^T is packed in
// pairs along D, V once per chunk in pairs of keys, and the weights are rounded to bf16 before they meet V. Sums, softmax, lse
// and the sum that divides out are float. On AMX's tiles too: what is other there, the terms say (tile_terms.h).
// Not: backward (bf16_backward.h); weights, which go by the float kernels (half.h).
#pragma once

#include "kernels/bf16_terms.h"
#include "kernels/half.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct Bf16ForwardScratch {
  HalfForwardScratch half;  // its panels, and v as float for tiles that hide something
  std::uint32_t* v_pairs;   // [key_tile / 2][Dv]; for tiles [Dv][key_tile / 2]
  std::uint32_t* p_pairs;   // [key_tile / 2][strip]
  PairStrides v_strides;
  std::size_t bytes;

  Bf16ForwardScratch(void* base, Index head_dim, Index v_head_dim) : half(base, head_dim, v_head_dim) {
    Carver carver(base);
    carver.take<std::byte>(static_cast<Index>(half.bytes));
    const Index pairs = key_tile<float>(head_dim, v_head_dim) / 2;
    v_pairs = carver.take<std::uint32_t>(pairs * v_head_dim);
    p_pairs = carver.take<std::uint32_t>(pairs * strip_lanes<float>());
    v_strides = Terms<BFloat16>::kTiled ? PairStrides{1, pairs} : PairStrides{v_head_dim, 1};
    bytes = carver.used();
  }
};

/// Rows and products of forward_tile on pairs. The widened rows of HalfRows serve what is float: v where a tile may hide NaN or
/// infinity, and out.
struct Bf16Rows : HalfRows<BFloat16> {
  static constexpr bool kSets = false;
  const Bf16ForwardScratch& pairs;

  Bf16Rows(const ForwardTile<BFloat16>& tile, const Bf16ForwardScratch& scratch)
      : HalfRows<BFloat16>(tile, scratch.half), pairs(scratch) {}

  std::uint32_t* q_pairs(const StripRows& r) const {
    return reinterpret_cast<std::uint32_t*>(w.tile.q_panels + r.strip * strip_lanes<float>() * t.scores.head_dim);
  }

  void pack_queries(const ForwardTile<float>&, const ForwardScratch<float>&, const StripRows& r) const {
    const TileScores<BFloat16>& s = t.scores;
    pack_pairs(s.q + r.i0 * s.q_stride, s.q_stride, r.ni, s.head_dim, strip_lanes<float>(), q_pairs(r));
  }
  void take_keys(ForwardTile<float>&, Index, Index) const {}
  void take_values(ForwardTile<float>& f, Index j0, Index nj) const {
    const BFloat16* const rows = t.v + j0 * t.v_stride;
    if constexpr (Terms<BFloat16>::kTiled) {
      pair_up_columns(rows, t.v_stride, nj, t.v_head_dim, pairs.v_strides.column, pairs.v_pairs);
    } else {
      pair_up_rows(rows, t.v_stride, nj, t.v_head_dim, pairs.v_pairs);
    }
    const bool may_hide = t.scores.mask.tile != nullptr || hides_by_value(t.scores);
    if (may_hide) HalfRows<BFloat16>::take_values(f, j0, nj);
  }

  ScoreTile score(const ForwardTile<float>& f, const ForwardScratch<float>& panels, const StripRows& r, Index j0, Index nj,
                  float* scores) const {
    const TileScores<BFloat16>& s = t.scores;
    const float factor = panel_factor(f.scores);
    return score_tile(f.scores, r.i0, r.ni, j0, nj, scores, panels.bias, panels.words, [&](const Part& part) {
      // scores[j, lane] = factor * sum_d k[j, d] * q[lane, d]
      product_vectors<BFloat16, Store::kScale>({.a = s.k + (j0 + part.lo) * s.k_stride,
                                                .a_row = s.k_stride,
                                                .a_depth = 2,
                                                .b = q_pairs(r),
                                                .b_row = strip_lanes<float>(),
                                                .c = scores + part.lo * strip_lanes<float>(),
                                                .c_row = strip_lanes<float>(),
                                                .depth = s.head_dim,
                                                .factor = &factor},
                                               part.hi - part.lo, part.first, part.count);
    });
  }

  void add_values(const ForwardTile<float>&, const Part& part, Index j0, Index nj, const float* p, float* out) const {
    round_part(part, p);
    const PairSpan steps = whole_steps(part.lo, part.hi);
    // A key beside the part, in one step with it, may be NaN, and 0 * NaN is NaN.
    if (hold_nonfinite(j0, 2 * steps.begin, part.lo) || hold_nonfinite(j0, part.hi, smaller(nj, 2 * steps.end))) {
      multiply_kept(
          part, steps, [](Index) { return ~0u; }, out);
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
         .depth = 2 * (steps.end - steps.begin)},
        t.v_head_dim, part.first, part.count);
  }
  void add_kept_values(const ForwardTile<float>&, const ForwardScratch<float>&, const Part& part, Index, Index, const float* p,
                       float* out) const {
    round_part(part, p);
    multiply_kept(
        part, whole_steps(part.lo, part.hi), [&](Index j) { return w.tile.words[j]; }, out);
  }

 private:
  void round_part(const Part& part, const float* p) const {
    round_pairs_of_rows(p, strip_lanes<float>(), part.lo, part.hi, part.first, part.count, pairs.p_pairs);
  }
  /// Whether v does, of keys [begin, end) of the chunk.
  bool hold_nonfinite(Index j0, Index begin, Index end) const {
    return begin < end && holds_nonfinite(t.v + (j0 + begin) * t.v_stride, t.v_stride, end - begin, t.v_head_dim);
  }

  /// out[d, lane] += the same sum over keys of the part only that the lane keeps, words(j) bit by bit: where NaN or infinity
  /// lies behind the mask. In the order and rounding of the product, where p = 0 adds nothing.
  template <class Words>
  void multiply_kept(const Part& part, PairSpan steps, const Words& words, float* out) const {
    constexpr int n = Simd<float>::kLanes;
    const F32 lower_half = as_f32(U32{} + 0xFFFFu), upper_half = as_f32(U32{} + 0xFFFF0000u);
    const auto lanes_of = [&](Index j, int v) { return j >= part.lo && j < part.hi ? words(j) >> (v * n) : 0u; };
    for (Index d = 0; d < t.v_head_dim; ++d) {
      for (int v = part.first; v < part.first + part.count; ++v) {
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

template <class Watch>
inline void forward_bf16_watched(const ForwardTile<BFloat16>& t, void* scratch, const Watch& watch) {
  if (t.v == nullptr && t.weights != nullptr) {
    forward_half_watched(t, scratch, watch);
    return;
  }
  const Bf16ForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim);
  ForwardTile<float> f = float_forward(t);
  f.v = t.v == nullptr ? nullptr : w.half.v;
  f.weights = f.exponentials = nullptr;  // by the float kernels, below
  forward_tile(f, w.half.tile, Bf16Rows(t, w), watch);
  if (t.weights == nullptr) return;
  float unused_lse[kStripsPerTile * strip_lanes<float>()];
  ForwardTile<BFloat16> weights = t;
  weights.v = nullptr;
  weights.lse = unused_lse;
  weights.row_max2 = weights.row_sum = weights.exponentials = nullptr;
  forward_half(weights, scratch);
}

inline void forward_bf16(const ForwardTile<BFloat16>& t, void* scratch) { forward_bf16_watched(t, scratch, Unwatched{}); }

inline std::size_t bf16_forward_scratch_bytes(Index head_dim, Index v_head_dim) {
  return Bf16ForwardScratch(nullptr, head_dim, v_head_dim).bytes;
}

}  // namespace
}  // namespace qkv
#endif
