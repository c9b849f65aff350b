// From a chunk of keys to the softmax weights of a few queries, for decode.h: scratch memory, the running state, dot
// products, soft cap, bias, mask, exponentials. Keys of a chunk are stored by slot: slot 4 g + i is key i * run + g,
// so that the four runs are side by side. A query mask is one uint32 per slot: bit r is set where row r (query and
// head) may attend.
#pragma once

#include "kernels/attention/scores.h"
#include "kernels/attention/scratch.h"
#include "kernels/decode/blocks.h"
#include "kernels/decode/int4_blocks.h"
#include "kernels/decode/lanes.h"

namespace qkv {
namespace {

/// Keys of a chunk. Its four runs lie far enough apart for the hardware to see four streams (32 KiB apart, at 128 KiB a
/// chunk, reads 4 % faster than 8 KiB); scores of 16 rows and 256 keys are 16 KiB.
template <class T> Index decode_chunk(Index head_dim, Index v_head_dim) {
  const Index width = larger(head_dim, v_head_dim);
  const Index bytes =
      std::is_same_v<T, Int4> ? row_bytes(StoredType::kInt4, width) : width * static_cast<Index>(sizeof(T));
  return larger<Index>(64, smaller<Index>(kChunkLimit, (Index{128} << 10) / bytes / 64 * 64));
}

/// Rows of q end with zeros, up to a multiple of so many numbers.
template <class T> constexpr Index kQueryUnit = std::is_same_v<T, Int4> ? 128 : Simd<SumOf<T>>::kLanes;

/// Of one storage type as of another: what comes after the dot products is compiled for types of sums only.
template <class Sum> struct DecodeScratch {
  static constexpr Index n = Simd<Sum>::kLanes;
  Carver carver;
  Index rows, head_dim, chunk;
  bool lanes;  // takes_lanes
  Index q_width, run = chunk / kRuns, row_lanes = round_up(rows, n);
  Sum* q = carver.array<Sum>(rows * q_width);  // [rows][head_dim], scaled, filled up with 0; by blocks
  // [head_dim][rows]: q transposed, or none
  Sum* panel = carver.array<Sum>(lanes ? head_dim * row_lanes : 0);
  Sum* scores = carver.array<Sum>(rows * kChunkLimit);   // [rows][kChunkLimit] by slot
  Sum* applied = carver.array<Sum>(rows * kChunkLimit);  // [rows][kChunkLimit]: after dropout
  Sum* bias = carver.array<Sum>(chunk);                  // [chunk] by slot
  Sum* maximum = carver.array<Sum>(row_lanes);           // [rows], as the next two
  Sum* rescale = carver.array<Sum>(row_lanes);
  Sum* ones = carver.array<Sum>(row_lanes);
  std::uint32_t* query_mask = carver.array<std::uint32_t>(chunk);   // [chunk] by slot: rows that may attend
  std::uint32_t* kept = carver.array<std::uint32_t>(chunk);         // [chunk] by slot: rows that survive dropout
  std::uint32_t* mask_by_key = carver.array<std::uint32_t>(chunk);  // [chunk] by key, as the next one
  std::uint32_t* mask_of_head = carver.array<std::uint32_t>(chunk);
  std::size_t bytes = carver.used();

  DecodeScratch(void* base, Index num_rows, Index d, Index q_unit, Index chunk_keys, bool in_lanes)
      : carver(base), rows(num_rows), head_dim(d), chunk(chunk_keys), lanes(in_lanes), q_width(round_up(d, q_unit)) {}
};

/// The result of some of the keys.
template <class Sum> struct DecodeState {
  Carver carver;
  Index rows, width;                                                    // width: v_head_dim filled up to whole vectors
  Sum* row_max = carver.array<Sum>(round_up(rows, Simd<Sum>::kLanes));  // [rows], in powers of two
  Sum* row_sum = carver.array<Sum>(round_up(rows, Simd<Sum>::kLanes));  // [rows]
  Sum* out = carver.array<Sum>(rows * width);                           // [rows][width], not yet divided by row_sum
  std::uint32_t* attended = carver.array<std::uint32_t>(1);             // rows that may attend any of the keys
  std::size_t bytes = carver.used();

  DecodeState(void* base, Index num_rows, Index dv)
      : carver(base), rows(num_rows), width(round_up(dv, Simd<Sum>::kLanes)) {}
};

template <class Sum> Index rows_of(const DecodeGroup<Sum>& t) { return t.q_len * t.group_size; }

/// The query mask of a chunk by key, and its live range: all heads of the group in one word.
template <class Sum> [[gnu::noinline]] LiveRange group_mask(
    const DecodeGroup<Sum>& t, Index j0, Index nj, std::uint32_t* query_mask, std::uint32_t* mask_of_head) {
  const TileMask& mask = t.scores.mask;
  if (mask.tile == nullptr) return {true, false, 0, nj};
  const std::uint32_t one_head = lane_bits(t.q_len);
  bool any = false, every = true;
  for (Index h = 0; h < t.group_size; ++h) {
    if (h == 0 || t.mask_differs) {
      const int verdict = mask.tile(mask.mask, mask.batch, mask.head + h, 0, t.q_len, j0, nj, mask_of_head);
      any |= verdict != kTileEmpty;
      every &= verdict == kTileFull;
      if (verdict != kTilePartial) {
        for (Index j = 0; j < nj; ++j) mask_of_head[j] = verdict == kTileFull ? one_head : 0;
      }
    }
    if (!t.mask_differs && (every || !any)) break;
    for (Index j = 0; j < nj; ++j) query_mask[j] = (h == 0 ? 0 : query_mask[j]) | mask_of_head[j] << (h * t.q_len);
  }
  LiveRange live{any, !every, 0, nj};
  if (!any || every) return live;
  trim_keys(query_mask, ~0u, live.lo, live.hi);
  live.any = live.lo < live.hi;
  return live;
}

/// by_slot[4 g + i] = by_key[i * run + g] for keys [lo, hi), 0 for the others.
template <class X> [[gnu::noinline]] void order_by_slot(const X* by_key, Index run, Index lo, Index hi, X* by_slot) {
  for (Index g = 0; g < run; ++g) {
    for (Index i = 0; i < kRuns; ++i) {
      const Index key = i * run + g;
      by_slot[kRuns * g + i] = key >= lo && key < hi ? by_key[key] : X{0};
    }
  }
}

/// The bias of one row by slot, in natural units; 0 outside the live keys.
template <class Sum> inline void copy_bias(
    const DecodeGroup<Sum>& t, Index row, Index j0, const LiveRange& live, const DecodeScratch<Sum>& w) {
  const auto& bias = t.scores.bias;
  const Sum* beside = t.scores.position;
  if (beside != nullptr) beside += row / t.q_len * t.position_head_stride + j0 - row % t.q_len;
  const Sum* source =
      bias.data + row / t.q_len * t.bias_head_stride + row % t.q_len * bias.row_stride + j0 * bias.column_stride;
  for (Index i = 0; i < kRuns; ++i) {
    for (Index g = 0; g < w.run; ++g) {
      const Index key = i * w.run + g;
      w.bias[kRuns * g + i] = key >= live.lo && key < live.hi ? source[key * bias.column_stride] : Sum{0};
      if (beside != nullptr && key >= live.lo && key < live.hi) w.bias[kRuns * g + i] += beside[key];
    }
  }
}

constexpr Index kSlotsAtOnce = Simd<float>::kLanes;

/// Row r's bits of kSlotsAtOnce slots: which of them it may attend.
inline std::uint32_t slots_of_row(const std::uint32_t* query_mask, Index r) {
  U32 some;
  __builtin_memcpy(&some, query_mask, sizeof some);
  return bits_where<float>((some & (1u << r)) != 0);
}

/// Row r may not attend the slots `never`.
inline void clear_slots(std::uint32_t* query_mask, Index r, std::uint32_t never) {
  for (; never != 0; never &= never - 1) query_mask[__builtin_ctz(never)] &= ~(1u << r);
}

/// Applies the callback to the natural scores of row r and scales to powers of two; -inf, which is not kept, clears its
/// bit.
template <class Sum> inline void modify_row(
    const DecodeGroup<Sum>& t, Index r, Index j0, const LiveRange& live, const DecodeScratch<Sum>& w) {
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const TileScoreMod<Sum>& mod = t.scores.mod;
  Sum* const row = w.scores + r * kChunkLimit;
  for (Index i = 0; i < kRuns; ++i) {
    const Index begin = larger<Index>(live.lo - i * w.run, 0), end = smaller(live.hi - i * w.run, w.run);
    if (begin >= end) continue;
    mod.apply(mod.mod, mod.batch, mod.head + r / t.q_len, r % t.q_len, 1, j0 + i * w.run + begin, end - begin,
        row + kRuns * begin + i, 0, kRuns, nullptr, 0, 0);
  }
  for (Index first = 0; first < w.chunk; first += kSlotsAtOnce) {
    std::uint32_t bits = slots_of_row(w.query_mask + first, r);
    for (Index slot = first; slot < first + kSlotsAtOnce; slot += n, bits >>= n % 32) {
      const V natural = load<Sum>(row + slot);
      const std::uint32_t never = bits_where<Sum>(natural == splat<Sum>(-kInf<Sum>));
      store<Sum>(row + slot, select_bits<V>(bits & ~never, log2_of_bias<Sum>(natural), splat<Sum>(-kInf<Sum>)));
      clear_slots(w.query_mask + slot, r, never);
    }
  }
}

/// Turns dot products into scores: soft cap, bias, callback, and -inf where not kept. A bias of -inf clears the row's
/// bit of its key.
template <class Sum> [[gnu::noinline]] void finish_scores(
    const DecodeGroup<Sum>& t, Index j0, const LiveRange& live, const DecodeScratch<Sum>& w) {
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const bool biased = t.scores.bias.data != nullptr, capped = t.scores.softcap > 0,
             modified = t.scores.mod.apply != nullptr;
  if (!live.masked && !biased && !capped && !modified) return;
  const V cap = splat<Sum>(t.scores.softcap * score_unit(t.scores));
  for (Index r = 0; r < rows_of(t); ++r) {
    if (biased) copy_bias(t, r, j0, live, w);
    for (Index first = 0; first < w.chunk; first += kSlotsAtOnce) {
      std::uint32_t bits = live.masked ? slots_of_row(w.query_mask + first, r) : ~0u;
      for (Index slot = first; slot < first + kSlotsAtOnce; slot += n, bits >>= n % 32) {
        Sum* at = w.scores + r * kChunkLimit + slot;
        V x = load<Sum>(at);
        if (capped) x = cap * tanh<Sum>(x);
        std::uint32_t kept = bits;
        if (biased) {
          const V natural = load<Sum>(w.bias + slot);
          const std::uint32_t never = bits_where<Sum>(natural == splat<Sum>(-kInf<Sum>));
          kept &= ~never;
          x += modified ? natural : log2_of_bias<Sum>(natural);
          clear_slots(w.query_mask + slot, r, never);
        }
        store<Sum>(at, select_bits<V>(kept, x, splat<Sum>(-kInf<Sum>)));
      }
    }
    if (modified) modify_row(t, r, j0, live, w);
  }
}

/// Dot products of all queries and the keys of a chunk.
template <class T, class Chunk>
inline void chunk_dots(const DecodeGroup<SumOf<T>>& t, const Chunk& k, const DecodeScratch<SumOf<T>>& w) {
  const Index rows = rows_of(t);
  if constexpr (takes_lanes<T>(kDecodeRowLimit)) {
    if (w.lanes) {
      lane_dots<T>(w.panel, rows, k, t.scores.head_dim, t.keys.into_l2, w.scores);
      return;
    }
  }
  for (Index g = 0; g < w.run; ++g) {
    const SomeRuns live = k.live(g);
    if (live.first >= live.last) continue;
    const auto row = k.row(g), soon = k.soon(g);
    for_row_blocks<T>(
        rows, t.keys.into_l2, [&](auto count, [[maybe_unused]] auto to, Index r) __attribute__((always_inline)) {
          const SomeRuns fetched = share_of_runs(r, count, rows, t.keys.into_l2);
          SumOf<T>* const q = w.q + r * w.q_width;
          SumOf<T>* const scores = w.scores + r * kChunkLimit + kRuns * g;
          if constexpr (std::is_same_v<T, Int4>) {
            dot_pieces<count>(q, row, live, t.scores.head_dim, soon, fetched, scores);
          } else {
            dot_block<T, count, to>(q, row, live, t.scores.head_dim, soon, fetched, scores);
          }
        });
  }
}

/// Multiplies dot products with integers by their keys' scales.
template <class Sum> inline void scale_scores(Index rows, const Sum* scales, const DecodeScratch<Sum>& w) {
  constexpr int n = Simd<Sum>::kLanes;
  for (Index r = 0; r < rows; ++r) {
    for (Index slot = 0; slot < w.chunk; slot += n) {
      Sum* at = w.scores + r * kChunkLimit + slot;
      store<Sum>(at, load<Sum>(at) * load<Sum>(scales + slot));
    }
  }
}

/// w.applied = weights times the scales of their values, 0 where a query may not attend: the scale may be NaN.
template <class Sum> inline void scale_weights(
    Index rows, const LiveRange& live, const Sum* weights, const Sum* scales, const DecodeScratch<Sum>& w) {
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  static_assert(n == Simd<float>::kLanes);
  for (Index r = 0; r < rows; ++r) {
    for (Index slot = 0; slot < w.chunk; slot += n) {
      V x = load<Sum>(weights + r * kChunkLimit + slot) * load<Sum>(scales + slot);
      if (live.masked) x = select_bits<V>(slots_of_row(w.query_mask + slot, r), x, V{});
      store<Sum>(w.applied + r * kChunkLimit + slot, x);
    }
  }
}

/// One step of the online softmax: scores become exp2(s2 - max), row_max is updated, rescale is the factor of the
/// result so far: exactly 1 where the maximum did not move. Prefetches rows [fetched, v.ahead) of each run of V
/// meanwhile.
template <class Sum, class Chunk> [[gnu::noinline]] void softmax_chunk(const DecodeGroup<Sum>& t, const Chunk& v,
    Index fetched, const DecodeScratch<Sum>& w, const DecodeState<Sum>& state) {
  const Index rows = rows_of(t), more = v.ahead - fetched;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  for (Index r = 0; r < rows; ++r) {
    V largest = splat<Sum>(-kInf<Sum>);
    for (Index slot = 0; slot < w.chunk; slot += n)
      largest = max_or_second(load<Sum>(w.scores + r * kChunkLimit + slot), largest);
    w.maximum[r] = largest_lane<Sum>(largest);
  }
  for (Index r = 0; r < rows; r += n) {
    const V before = load<Sum>(state.row_max + r), maximum = max_or_second(load<Sum>(w.maximum + r), before);
    const V factor = exp2<Sum>(before - maximum);
    store<Sum>(w.rescale + r, before == maximum ? splat<Sum>(1) : factor);
    store<Sum>(state.row_max + r, maximum);
    store<Sum>(w.maximum + r, shift_of<Sum>(maximum));
  }
  for (Index r = 0; r < rows; ++r) {
    for (Index g = fetched + more * r / rows; g < fetched + more * (r + 1) / rows; ++g) {
      for (Index i = 0; i < kRuns; ++i) fetch_row(v.row(g)[i], t.v_head_dim, t.keys.into_l2);
    }
    const V shift = splat<Sum>(w.maximum[r]);
    for (Index slot = 0; slot < w.chunk; slot += n) {
      Sum* at = w.scores + r * kChunkLimit + slot;
      store<Sum>(at, exp2<Sum>(load<Sum>(at) - shift));
    }
  }
}

}  // namespace
}  // namespace qkv
