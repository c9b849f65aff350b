// Attention forward on products of bf16 pairs: K is read in its natural rows, two numbers to a 32-bit word, Q^T is packed in
// pairs along D, V once per chunk in pairs of keys, and the weights are rounded to bf16 before they meet V. Sums, softmax, lse
// and the sum that divides out are float.
// Not: backward and weights, which go by the float kernels (half.h); AMX.
#pragma once

#include "kernels/half.h"
#include "simd/bf16_pairs.h"

#if defined(QKV_BF16_PAIRS)
namespace qkv {
namespace {

static_assert(kVectors == 2 && Simd<float>::kLanes == 16);

constexpr Index pairs_of(Index count) { return (count + 1) / 2; }

/// C[m][n] (op) factor * sum_k A[m, k] . B[k][n] over pairs k. The rows of A begin anywhere; their strides are in bf16 numbers.
struct PairProduct {
  const BFloat16* a;
  Index a_row, a_depth;
  const std::uint32_t* b;  // [depth][kStrip]
  float* c;                // [rows][kStrip]
  Index depth;             // whole pairs
  bool lower_after;        // one more lower half after them
  float factor = 1;
};

template <int kR, int kV, Store kStore>
inline __attribute__((always_inline)) void pair_block(const PairProduct& p, const BFloat16* a, float* c) {
  constexpr int n = Simd<float>::kLanes;
  F32 acc[kR][kV];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) acc[r][v] = F32{};
  }
  const Index a_row = p.a_row, a_depth = p.a_depth;
  const std::uint32_t* b = p.b;
  const auto step = [&](const auto& splat_a) __attribute__((always_inline)) {
    U32 bv[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) bv[v] = load_u32(b + v * n);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      const U32 av = splat_a(a + r * a_row);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = add_pairs(acc[r][v], av, bv[v]);
    }
    a += a_depth;
    b += kStrip<float>;
  };
  for (Index depth = p.depth; depth > 0; --depth) step([](const BFloat16* x) { return splat_pair(x); });
  if (p.lower_after) step([](const BFloat16* x) { return splat_lower(x); });
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      float* target = c + r * kStrip<float> + v * n;
      const F32 sum = acc[r][v] * p.factor;
      store<float>(target, kStore == Store::kAdd ? load<float>(target) + sum : sum);
    }
  }
}

template <int kV, Store kStore>
inline void pair_rows(const PairProduct& p, Index rows) {
  const BFloat16* a = p.a;
  float* c = p.c;
  for (; rows >= 8; rows -= 8, a += 8 * p.a_row, c += 8 * kStrip<float>) pair_block<8, kV, kStore>(p, a, c);
  for (; rows >= 2; rows -= 2, a += 2 * p.a_row, c += 2 * kStrip<float>) pair_block<2, kV, kStore>(p, a, c);
  if (rows > 0) pair_block<1, kV, kStore>(p, a, c);
}

/// Vectors [first, first + count) of the strip: all of them or one.
template <Store kStore>
inline void pair_product(PairProduct p, Index rows, int first, int count) {
  if (count == kVectors) {
    pair_rows<kVectors, kStore>(p, rows);
    return;
  }
  p.b += first * Simd<float>::kLanes;
  p.c += first * Simd<float>::kLanes;
  pair_rows<1, kStore>(p, rows);
}

/// panel[k][lane] = numbers 2 k and 2 k + 1 of row `lane`, 0 past the ends of rows and columns. Words are moved, never computed
/// with: as floats they may be anything.
inline void pack_pairs(const BFloat16* rows, Index stride, Index count, Index width, std::uint32_t* panel) {
  constexpr int n = Simd<float>::kLanes;
  for (Index r0 = 0; r0 < count; r0 += n) {
    for (Index c0 = 0; c0 < width; c0 += 2 * n) {
      F32 square[n];
      for (int r = 0; r < n; ++r) {
        square[r] = r0 + r < count ? as_f32(load_pairs(rows + (r0 + r) * stride + c0, width - c0)) : F32{};
      }
      transpose_square<float>(square);
      const Index live = smaller<Index>(n, pairs_of(width - c0));
      for (Index c = 0; c < live; ++c) store_u32(panel + (c0 / 2 + c) * kStrip<float> + r0, as_u32(square[c]));
    }
  }
}

/// pairs[k][d] = rows 2 k and 2 k + 1 at column d, 0 past the last row.
inline void pair_up_rows(const BFloat16* rows, Index stride, Index count, Index width, std::uint32_t* pairs) {
  for (Index j = 0; j < count; j += 2, pairs += width) {
    const BFloat16 *lower = rows + j * stride, *upper = lower + stride;
    Index d = 0;
    for (; d + 16 <= width; d += 16) {
      U16 a, b{};
      __builtin_memcpy(&a, lower + d, sizeof a);
      if (j + 1 < count) __builtin_memcpy(&b, upper + d, sizeof b);
      store_u32(pairs + d, zero_extended(a) | zero_extended(b) << 16);
    }
    for (; d < width; ++d) pairs[d] = lower[d].bits | (j + 1 < count ? std::uint32_t{upper[d].bits} << 16 : 0u);
  }
}

/// pairs[k][lane] = p[2 k][lane] and p[2 k + 1][lane] rounded, for the rows [lo, hi); rows outside count as 0.
inline void round_weights(const float* p, Index lo, Index hi, int first, int count, std::uint32_t* pairs) {
  constexpr int n = Simd<float>::kLanes;
  for (Index k = lo / 2; k < pairs_of(hi); ++k) {
    for (int v = first; v < first + count; ++v) {
      const float* row = p + 2 * k * kStrip<float> + v * n;
      const F32 lower = 2 * k >= lo ? load<float>(row) : F32{};
      const F32 upper = 2 * k + 1 < hi ? load<float>(row + kStrip<float>) : F32{};
      store_u32(pairs + k * kStrip<float> + v * n, round_pairs(lower, upper));
    }
  }
}

struct Bf16ForwardScratch {
  HalfForwardScratch half;  // its panels, and v as float for tiles that hide something
  std::uint32_t* v_pairs;   // [key_tile / 2][Dv]
  std::uint32_t* p_pairs;   // [key_tile / 2][kStrip]
  std::uint32_t* edge;      // [Dv]: one row of v_pairs with a half of each word cleared
  std::size_t bytes;

  Bf16ForwardScratch(void* base, Index head_dim, Index v_head_dim) : half(base, head_dim, v_head_dim) {
    Carver carver(base);
    carver.take<std::byte>(static_cast<Index>(half.bytes));
    const Index pairs = key_tile<float>(head_dim, v_head_dim) / 2;
    v_pairs = carver.take<std::uint32_t>(pairs * v_head_dim);
    p_pairs = carver.take<std::uint32_t>(pairs * kStrip<float>);
    edge = carver.take<std::uint32_t>(v_head_dim);
    bytes = carver.used();
  }
};

/// Rows and products of forward_tile on pairs. The widened rows of HalfRows serve what is float: v where a tile may hide NaN or
/// infinity, and out.
struct Bf16Rows : HalfRows<BFloat16> {
  static constexpr bool kSets = false;  // a part's pairs at its edges are sums of their own
  const Bf16ForwardScratch& pairs;

  Bf16Rows(const ForwardTile<BFloat16>& tile, const Bf16ForwardScratch& scratch)
      : HalfRows<BFloat16>(tile, scratch.half), pairs(scratch) {}

  std::uint32_t* q_pairs(const StripRows& r) const {
    return reinterpret_cast<std::uint32_t*>(w.tile.q_panels + r.strip * kStrip<float> * t.scores.head_dim);
  }

  void pack_queries(const ForwardTile<float>&, const ForwardScratch<float>&, const StripRows& r) const {
    const TileScores<BFloat16>& s = t.scores;
    pack_pairs(s.q + r.i0 * s.q_stride, s.q_stride, r.ni, s.head_dim, q_pairs(r));
  }
  void take_keys(ForwardTile<float>&, Index, Index) const {}
  void take_values(ForwardTile<float>& f, Index j0, Index nj) const {
    pair_up_rows(t.v + j0 * t.v_stride, t.v_stride, nj, t.v_head_dim, pairs.v_pairs);
    const bool may_hide = t.scores.mask.tile != nullptr || hides_by_value(t.scores);
    if (may_hide) HalfRows<BFloat16>::take_values(f, j0, nj);
  }

  ScoreTile score(const ForwardTile<float>& f, const ForwardScratch<float>& panels, const StripRows& r, Index j0, Index nj,
                  float* scores) const {
    const TileScores<BFloat16>& s = t.scores;
    return score_tile(f.scores, r.i0, r.ni, j0, nj, scores, panels.bias, panels.words, [&](const Part& part) {
      // scores[j, lane] = factor * sum_d k[j, d] * q[lane, d]
      pair_product<Store::kSet>({.a = s.k + (j0 + part.lo) * s.k_stride,
                                 .a_row = s.k_stride,
                                 .a_depth = 2,
                                 .b = q_pairs(r),
                                 .c = scores + part.lo * kStrip<float>,
                                 .depth = s.head_dim / 2,
                                 .lower_after = s.head_dim % 2 != 0,
                                 .factor = panel_factor(f.scores)},
                                part.hi - part.lo, part.first, part.count);
    });
  }

  void add_values(const ForwardTile<float>&, const Part& part, Index, Index nj, const float* p, float* out) const {
    const Pairs of = round_part(part, nj, p);
    multiply_pairs(part, pairs.v_pairs + of.begin * t.v_head_dim, of.begin, of.end - of.begin, out);
    if (of.splits_first) multiply_edge(part, part.lo / 2, 0xFFFF0000u, out);
    if (of.splits_last) multiply_edge(part, part.hi / 2, 0xFFFFu, out);
  }
  void add_kept_values(const ForwardTile<float>&, const ForwardScratch<float>&, const Part& part, Index, Index nj,
                       const float* p, float* out) const {
    const Pairs of = round_part(part, nj, p);
    multiply_kept(part, of.begin, of.end, out);
    if (of.splits_first) multiply_kept(part, part.lo / 2, part.lo / 2 + 1, out);
    if (of.splits_last) multiply_kept(part, part.hi / 2, part.hi / 2 + 1, out);
  }

 private:
  /// The whole pairs [begin, end) of a part, and whether a key of a pair beside them belongs to it too.
  struct Pairs {
    Index begin, end;
    bool splits_first, splits_last;
  };
  Pairs round_part(const Part& part, Index nj, const float* p) const {
    round_weights(p, part.lo, part.hi, part.first, part.count, pairs.p_pairs);
    const bool whole_end = part.hi % 2 == 0 || part.hi == nj;  // past the last key of a chunk there are zeros
    const Index begin = pairs_of(part.lo), end = larger(begin, whole_end ? pairs_of(part.hi) : part.hi / 2);
    return {begin, end, part.lo % 2 != 0, !whole_end};
  }

  /// out[d, lane] += sum_j v[j, d] * p[j, lane] over `count` pairs of keys, those of p from `begin` on.
  void multiply_pairs(const Part& part, const std::uint32_t* values, Index begin, Index count, float* out) const {
    pair_product<Store::kAdd>({.a = reinterpret_cast<const BFloat16*>(values),
                               .a_row = 2,
                               .a_depth = 2 * t.v_head_dim,
                               .b = pairs.p_pairs + begin * kStrip<float>,
                               .c = out,
                               .depth = count,
                               .lower_after = false},
                              t.v_head_dim, part.first, part.count);
  }

  /// A pair of which one key lies outside the part: that key may be NaN, and 0 * NaN is NaN.
  void multiply_edge(const Part& part, Index pair, std::uint32_t half, float* out) const {
    for (Index d = 0; d < t.v_head_dim; ++d) pairs.edge[d] = pairs.v_pairs[pair * t.v_head_dim + d] & half;
    multiply_pairs(part, pairs.edge, pair, 1, out);
  }

  /// out[d, lane] += the same sum over pairs [begin, end) of the chunk, of keys that the lane keeps only: for tiles that hide
  /// NaN or infinity behind the mask. Same order and rounding as multiply_pairs, where p = 0 adds nothing.
  void multiply_kept(const Part& part, Index begin, Index end, float* out) const {
    constexpr int n = Simd<float>::kLanes;
    const F32 lower_half = as_f32(U32{} + 0xFFFFu), upper_half = as_f32(U32{} + 0xFFFF0000u);
    const auto lanes_of = [&](Index j, int v) { return j >= part.lo && j < part.hi ? w.tile.words[j] >> (v * n) : 0u; };
    for (Index d = 0; d < t.v_head_dim; ++d) {
      for (int v = part.first; v < part.first + part.count; ++v) {
        F32 sum{};
        for (Index k = begin; k < end; ++k) {
          const U32 lower = as_u32(select_bits<F32>(lanes_of(2 * k, v), lower_half, F32{}));
          const U32 upper = as_u32(select_bits<F32>(lanes_of(2 * k + 1, v), upper_half, F32{}));
          const U32 a = pairs.v_pairs[k * t.v_head_dim + d] & (lower | upper);
          sum = add_pairs(sum, a, load_u32(pairs.p_pairs + k * kStrip<float> + v * n));
        }
        float* place = out + d * kStrip<float> + v * n;
        store<float>(place, load<float>(place) + sum);
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
  forward_tile(f, w.half.tile, Bf16Rows(t, w), watch);
  if (t.weights == nullptr) return;
  float unused_lse[kStripsPerTile * kStrip<float>];
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
