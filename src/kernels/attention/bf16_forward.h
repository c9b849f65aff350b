// Attention forward on products of bf16 pairs: K is read in its natural rows, two numbers to a 32-bit word, Q^T is
// packed in pairs along D, V once per chunk in pairs of keys, and the weights are rounded to bf16 before the product
// with V. Sums, softmax and lse are float. The same code runs on AMX tiles; Terms<BFloat16> holds the difference
// (amx_terms.h).
#pragma once

#include "kernels/attention/forward.h"
#include "kernels/products/bf16_terms.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

struct Bf16ForwardScratch {
  ForwardScratch<float> tile;  // with room for out, keys of several pages, and v as float where a mask may hide NaN
  Carver carver;
  Index pairs = tile.keys / 2, v_head_dim = tile.v_head_dim;
  std::uint32_t* v_pairs = carver.array<std::uint32_t>(pairs * v_head_dim);  // [pairs][Dv]; for AMX tiles [Dv][pairs]
  std::uint32_t* p_pairs = carver.array<std::uint32_t>(pairs * strip_lanes<float>());  // [pairs][strip]
  PairStrides v_strides = Terms<BFloat16>::kAmxTiles ? PairStrides{1, pairs} : PairStrides{v_head_dim, 1};
  std::size_t bytes = carver.used();

  Bf16ForwardScratch(void* base, Index d, Index dv, Index queries)
      : tile(base, d, dv, queries, true), carver(base, tile.bytes) {}
};

inline std::size_t bf16_forward_scratch_bytes(Index head_dim, Index v_head_dim, Index queries, bool) {
  return Bf16ForwardScratch(nullptr, head_dim, v_head_dim, queries).bytes;
}

/// Rows and products of forward_tile on pairs. PagedRows provides what is float: out, and v where a mask may hide NaN
/// or infinity.
struct Bf16Rows : PagedRows<float> {
  static constexpr bool kSets = false;
  const Bf16ForwardScratch& pairs;
  TypedRows<const BFloat16> keys{};  // of the chunk, as they are stored

  Bf16Rows(const ForwardTile<float>& t, const Bf16ForwardScratch& scratch)
      : PagedRows<float>(t, scratch.tile), pairs(scratch) {}

  std::uint32_t* q_pairs(const ForwardTile<float>& t, const StripRange& r) const {
    return reinterpret_cast<std::uint32_t*>(w.q_panels + r.strip * strip_lanes<float>() * t.scores.head_dim);
  }

  void pack_queries(const ForwardTile<float>& t, const ForwardScratch<float>&, const StripRange& r) const {
    const TypedRows<const BFloat16> q =
        rows_as<BFloat16>(t.q, r.i0 - t.q_begin, r.ni, t.scores.head_dim, static_cast<BFloat16*>(nullptr));
    pack_pairs(q.data, q.stride, r.ni, t.scores.head_dim, strip_lanes<float>(), q_pairs(t, r));
  }
  void read_keys(const ForwardTile<float>& t, Index j0, Index nj) {
    keys = stored(t.keys, t.keys.k, j0, nj, t.scores.head_dim, w.k);
  }
  void read_values(const ForwardTile<float>& t, Index j0, Index nj) {
    const TypedRows<const BFloat16> values = stored(t.keys, t.keys.v, j0, nj, t.v_head_dim, w.v);
    if constexpr (Terms<BFloat16>::kAmxTiles) {
      pair_up_columns(values.data, values.stride, nj, t.v_head_dim, pairs.v_strides.column, pairs.v_pairs);
    } else {
      pair_up_rows(values.data, values.stride, nj, t.v_head_dim, t.v_head_dim, pairs.v_pairs);
    }
    const bool may_hide = t.scores.mask.tile != nullptr || hides_by_value(t.scores);
    if (may_hide) PagedRows<float>::read_values(t, j0, nj);
  }

  ScoreTile score(const ForwardTile<float>& t, const ForwardScratch<float>& panels, const StripRange& r, Index j0,
      Index nj, float* scores) const {
    const ScoreParams<float>& s = t.scores;
    const float factor = panel_factor(s);
    return score_tile(s, r.i0, r.ni, j0, nj, scores, panels.bias, panels.lane_mask, [&](const VectorRange& range) {
      // scores[j, lane] = factor * sum_d k[j, d] * q[lane, d]
      product_vectors<BFloat16, Store::kScale>({.a = keys.data + range.lo * keys.stride,
                                                   .a_row = keys.stride,
                                                   .a_depth = 2,
                                                   .b = q_pairs(t, r),
                                                   .b_row = strip_lanes<float>(),
                                                   .c = scores + range.lo * strip_lanes<float>(),
                                                   .c_row = strip_lanes<float>(),
                                                   .depth = s.head_dim,
                                                   .factor = &factor,
                                                   .ahead = t.ahead},
          range.hi - range.lo, range.first, range.count);
    });
  }

  void add_values(const ForwardTile<float>& t, const StripRange&, const LiveRange&, const VectorRange& range, Index nj,
      const float* p, float* out) const {
    round_range(range, p);
    const PairSpan steps = whole_steps(range.lo, range.hi);
    // A key next to the range, in the same step of the product, may be NaN, and 0 * NaN is NaN.
    if (hold_nonfinite(2 * steps.begin, range.lo) || hold_nonfinite(range.hi, smaller(nj, 2 * steps.end))) {
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
            .ahead = t.ahead},
        t.v_head_dim, range.first, range.count);
  }
  void add_kept_values(const ForwardTile<float>&, const ForwardScratch<float>&, const VectorRange& range,
      const float* p, float* out) const {
    round_range(range, p);
    multiply_kept(
        range, whole_steps(range.lo, range.hi), [&](Index j) { return w.lane_mask[j]; }, out);
  }

 private:
  void round_range(const VectorRange& range, const float* p) const {
    round_pairs_of_rows(p, strip_lanes<float>(), range.lo, range.hi, range.first, range.count, pairs.p_pairs);
  }
  /// Whether v of keys [begin, end) of the chunk, which the mask hides, holds NaN or infinity.
  bool hold_nonfinite(Index begin, Index end) const {
    return begin < end && holds_nonfinite(v.data + begin * v.stride, v.stride, end - begin, pairs.v_head_dim);
  }
  /// Rows of one matrix of the chunk, copied where they lie in several pages.
  static TypedRows<const BFloat16> stored(
      const HeadKeys& keys, const KeyMatrix& matrix, Index j0, Index nj, Index width, float* memory) {
    if (const BFloat16* rows = chunk_in_place<BFloat16>(keys, matrix, j0, nj); rows != nullptr) {
      return {rows, matrix.row_stride};
    }
    auto* const copy = reinterpret_cast<BFloat16*>(memory);
    copy_keys(keys, matrix, j0, nj, width, copy);
    return {copy, width};
  }

  /// out[d, lane] += the same sum over the keys of the range that the lane attends, by lane_mask(j): for NaN or
  /// infinity behind the mask. In the order and rounding of the product, where p = 0 adds nothing.
  template <class LaneMask>
  void multiply_kept(const VectorRange& range, PairSpan steps, const LaneMask& lane_mask, float* out) const {
    constexpr int n = Simd<float>::kLanes;
    const F32 lower_half = as_f32(U32{} + 0xFFFFu), upper_half = as_f32(U32{} + 0xFFFF0000u);
    const auto lanes_of = [&](Index j, int vector) {
      return j >= range.lo && j < range.hi ? lane_mask(j) >> (vector * n) : 0u;
    };
    for (Index d = 0; d < pairs.v_head_dim; ++d) {
      for (int vector = range.first; vector < range.first + range.count; ++vector) {
        Chain<BFloat16> chain;
        for (Index step = steps.begin; step < steps.end; ++step) {
          const U32 lower = as_u32(select_bits<F32>(lanes_of(2 * step, vector), lower_half, F32{}));
          const U32 upper = as_u32(select_bits<F32>(lanes_of(2 * step + 1, vector), upper_half, F32{}));
          const U32 a = pairs.v_pairs[step * pairs.v_strides.pair + d * pairs.v_strides.column] & (lower | upper);
          chain.add(2 * step, a, load_u32(pairs.p_pairs + step * strip_lanes<float>() + vector * n));
        }
        float* target = out + d * strip_lanes<float>() + vector * n;
        store<float>(target, load<float>(target) + chain.total());
      }
    }
  }
};

template <class Observer>
inline void forward_bf16_observed(const ForwardTile<float>& t, void* scratch, const Observer& observer) {
  const Bf16ForwardScratch w(scratch, t.scores.head_dim, t.v_head_dim, t.q_count);
  Bf16Rows rows(t, w);
  forward_tile(t, w.tile, rows, observer);
}

inline void forward_bf16(const ForwardTile<float>& t, void* scratch) {
  forward_bf16_observed(t, scratch, NoObserver{});
}

}  // namespace
}  // namespace qkv
#endif
