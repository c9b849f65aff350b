// Decode attention: few queries over many keys, limited by memory bandwidth. Each row of K and V is read once for all
// queries of all heads that share it. Scores are dot products along D, stored query by query with keys in the lanes. A
// chunk of keys is cut into four runs that are read side by side with software prefetch: a single stream does not fill
// the memory's queues. Parts of the keys (split-K) each give a maximum, a sum and an undivided result, merged in the
// order of their keys. Milakov & Gimelshein 2018 (1805.02867); Dao et al. 2023, "Flash-Decoding".
#pragma once

#include "kernels/decode/scores.h"
#include "kernels/decode/sources.h"
#include "simd/log.h"

namespace qkv {
namespace {

/// w.applied = the weights that survive dropout.
template <class Sum> [[gnu::noinline]] void drop_weights(
    const DecodeGroup<Sum>& t, Index j0, const LiveRange& live, const DecodeScratch<Sum>& w) {
  TileDropout dropout = t.scores.dropout;
  for (Index h = 0; h < t.group_size; ++h, ++dropout.sequence_head) {
    dropout_mask<Sum>(dropout, 0, t.q_len, j0, live.lo, live.hi, w.mask_of_head);
    for (Index key = live.lo; key < live.hi; ++key) {
      w.mask_by_key[key] = (h == 0 ? 0 : w.mask_by_key[key]) | (w.mask_of_head[key] & lane_bits(t.q_len))
                                                                   << (h * t.q_len);
    }
  }
  order_by_slot(w.mask_by_key, w.run, live.lo, live.hi, w.kept);
  for (Index r = 0; r < rows_of(t); ++r) {
    for (Index slot = 0; slot < w.chunk; ++slot) {
      w.applied[r * kChunkLimit + slot] = (w.kept[slot] >> r & 1u) != 0 ? w.scores[r * kChunkLimit + slot] : Sum{0};
    }
  }
}

/// row_sum[r] = row_sum[r] * factor[r] + the weights of slots [begin, end), in the order and rounding in which the rows
/// of V are added, so that a constant V is returned exactly. n rows at a time are transposed into lanes.
template <class T>
[[gnu::noinline]] void add_sums(const T* weights, Index rows, Index begin, Index end, const T* factor, T* row_sum) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index r = 0; r < rows; r += n) {
    V sum{};
    for (Index slot = begin; slot < end; slot += n) {
      V square[n];
      load_square<T>(weights + r * kChunkLimit + slot, kChunkLimit, rows - r, n, square);
      transpose_square<T>(square);
#pragma GCC unroll 16
      for (int p = 0; p < n; ++p) sum += square[p];
    }
    store<T>(row_sum + r, fma(load<T>(row_sum + r), load<T>(factor + r), sum));
  }
}

/// value_rows over kept pairs only, for chunks with NaN or infinity behind the mask. The same sums otherwise.
template <class T, class Chunk> [[gnu::noinline]] void add_kept_values(const DecodeGroup<SumOf<T>>& t,
    const DecodeScratch<SumOf<T>>& w, const SumOf<T>* weights, const Chunk& v, Index begin, Index end,
    const SumOf<T>* factor, const DecodeState<SumOf<T>>& state) {
  using Sum = SumOf<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  for (Index r = 0; r < rows_of(t); ++r) {
    for (Index d = 0; d < t.v_head_dim; d += n) {
      V sum{};
      for (Index slot = kRuns * begin; slot < kRuns * end; ++slot) {
        if ((w.query_mask[slot] >> r & 1u) == 0) continue;
        const V value = load_column<T>(v.row(slot / kRuns)[slot % kRuns], d, t.v_head_dim);
        sum = fma(splat<Sum>(weights[r * kChunkLimit + slot]), value, sum);
      }
      Sum* slot = state.out + r * state.width + d;
      store<Sum>(slot, fma(load<Sum>(slot), splat<Sum>(factor[r]), sum));
    }
  }
}

/// Whether rows of V that some query may not attend hold NaN or infinity: 0 * NaN is NaN.
template <class T, class Chunk> [[gnu::noinline]] bool hides_nonfinite_values(
    const DecodeGroup<SumOf<T>>& t, const DecodeScratch<SumOf<T>>& w, const Chunk& v) {
  using Sum = SumOf<T>;
  using V = typename Simd<Sum>::V;
  const std::uint32_t all = lane_bits(rows_of(t));
  V marks{};
  for (Index g = 0; g < w.run; ++g) {
    const SomeRuns live = v.live(g);
    for (Index i = live.first; i < live.last; ++i) {
      if ((w.query_mask[kRuns * g + i] & all) == all) continue;
      const T* row = v.row(g)[i];
      for_columns(row, t.v_head_dim, [&](Index, V x) { marks = fma(x, V{}, marks); });
    }
  }
  return bits_where<Sum>(marks != marks) != 0;
}

/// Rows of each run between write-backs of sums and results: these rows of V stay in L1 while all queries use them.
constexpr Index kDecodeSteps = 8;

template <class T, class Source, class Chunk> inline void decode_values(const DecodeGroup<SumOf<T>>& t, Index j0,
    const LiveRange& live, const DecodeScratch<SumOf<T>>& w, const Source& source, const Chunk& v,
    const DecodeState<SumOf<T>>& state) {
  using Sum = SumOf<T>;
  bool hides = false;  // integers are finite, and scale_weights selects around their scales
  if constexpr (!Source::kScaled) hides = live.masked && hides_nonfinite_values<T>(t, w, v);
  const Sum* weights = w.scores;
  if (t.scores.dropout.threshold != 0) {
    drop_weights(t, j0, live, w);
    weights = w.applied;
  }
  if constexpr (Source::kScaled) {
    scale_weights(rows_of(t), live, weights, source.v_scales, w);
    weights = w.applied;
  }
  for (Index g = 0; g < w.run; g += kDecodeSteps) {
    const Index end = g + kDecodeSteps;
    const Sum* factor = g == 0 ? w.rescale : w.ones;
    add_sums<Sum>(w.scores, rows_of(t), kRuns * g, kRuns * end, factor, state.row_sum);
    if (hides) {
      add_kept_values<T>(t, w, weights, v, g, end, factor, state);
      continue;
    }
    for_row_blocks<T>(
        rows_of(t), t.keys.into_l2, [&](auto count, [[maybe_unused]] auto to, Index r) __attribute__((always_inline)) {
          const Sum* const some = weights + r * kChunkLimit;
          Sum* const out = state.out + r * state.width;
          const SomeRuns fetched = share_of_runs(r, count, rows_of(t), t.keys.into_l2);
          if constexpr (std::is_same_v<T, Int4>) {
            value_pieces<count>(some, v, g, end, t.v_head_dim, out, state.width, factor + r, fetched);
          } else {
            value_rows<T, count, to>(some, v, g, end, t.v_head_dim, out, state.width, factor + r, fetched);
          }
        });
  }
}

template <class T, class Source> inline void decode_chunk_keys(const DecodeGroup<SumOf<T>>& t, Index j0, Source& source,
    const DecodeScratch<SumOf<T>>& w, const DecodeState<SumOf<T>>& state) {
  const auto& s = t.scores;
  const Index nj = smaller(w.chunk, s.kv_len - j0);
  LiveRange live = group_mask(t, j0, nj, w.mask_by_key, w.mask_of_head);
  if (!live.any) return;
  const std::uint32_t all = lane_bits(rows_of(t));
  const bool whole = live.lo == 0 && live.hi == w.chunk;
  if (!live.masked && (!whole || hides_by_value(s))) {
    for (Index key = live.lo; key < live.hi; ++key) w.mask_by_key[key] = all;
    live.masked = true;
  }
  if (live.masked) order_by_slot(w.mask_by_key, w.run, live.lo, live.hi, w.query_mask);
  const Index bytes = row_bytes(t.keys.type, larger(s.head_dim, t.v_head_dim));
  const Index ahead = larger<Index>(1, smaller<Index>(w.run / 2, kAheadBytes / bytes));
  const Index in_softmax = smaller(rows_of(t) / 2, ahead * 2);  // rows of V that are prefetched during the softmax
  const auto [k, v] =
      source.chunk(j0, w.chunk, {w.run, ahead, live.lo, live.hi}, {w.run, ahead + in_softmax, live.lo, live.hi});
  chunk_dots<T>(t, k, w);
  if constexpr (Source::kScaled) scale_scores(rows_of(t), source.k_scales, w);
  finish_scores(t, j0, live, w);
  std::uint32_t attended = all;
  if (live.masked) {
    attended = 0;
    for (Index slot = 0; slot < w.chunk; ++slot) attended |= w.query_mask[slot];
  }
  *state.attended |= attended;
  softmax_chunk(t, v, ahead, w, state);
  decode_values<T>(t, j0, live, w, source, v, state);
}

/// Row r of Q, scaled, as whole vectors `between` numbers apart, split where dot_block reads numbers of even and odd
/// slots.
template <class T> inline void pack_query(const DecodeGroup<SumOf<T>>& t, Index r, SumOf<T>* to, Index between) {
  using Sum = SumOf<T>;
  constexpr Index n = Simd<Sum>::kLanes;
  const Index head_dim = t.scores.head_dim;
  const Sum factor = panel_factor(t.scores);
  for_float_type<Sum>(t.q.type, [&](auto stored) {
    using Q = decltype(stored);
    const Q* const row =
        reinterpret_cast<const Q*>(t.q.data) + r / t.q_len * t.q_head_stride + r % t.q_len * t.q.stride;
    for (Index d = 0; d < round_up(head_dim, kQueryUnit<T>); d += n) {
      const int left = static_cast<int>(smaller<Index>(n, head_dim - d));
      store<Sum>(to + d / n * between, left > 0 ? load_row_tail(row + d, left) * factor : typename Simd<Sum>::V{});
    }
  });
  if constexpr (kReadsEvenOdd<T>) {
    for (Index d = 0; d + 2 * n <= head_dim; d += 2 * n, to += 2 * between) {
      const EvenOdd split = split_even_odd(load<Sum>(to), load<Sum>(to + between));
      store<Sum>(to, split.even);
      store<Sum>(to + between, split.odd);
    }
  }
}

template <class T> inline void pack_queries(const DecodeGroup<SumOf<T>>& t, const DecodeScratch<SumOf<T>>& w) {
  using Sum = SumOf<T>;
  constexpr Index n = Simd<Sum>::kLanes;
  const Index rows = rows_of(t);
  if (w.lanes) {
    for (Index r = 0; r < rows; ++r) pack_query<T>(t, r, w.q + r * w.q_width, n);
    pack_transposed<Sum>(w.q, w.q_width, rows, t.scores.head_dim, Sum{1}, w.panel, round_up(rows, n));
    return;
  }
  for_row_blocks<T>(rows, true, [&](auto count, auto, Index first) {
    for (Index i = 0; i < count; ++i) pack_query<T>(t, first + i, w.q + first * w.q_width + i * n, count * n);
  });
}

/// The first chunk at or after j0 with a key that a query of any head may attend; `end`: none.
template <class Sum> inline Index live_chunk_of_group(const DecodeGroup<Sum>& t, Index j0, Index end, Index chunk) {
  TileMask mask = t.scores.mask;
  Index next = live_step(mask, 0, t.q_len, j0, end, chunk);
  for (Index h = 1; t.mask_differs && h < t.group_size && next > j0; ++h) {
    ++mask.head;
    next = smaller(next, live_step(mask, 0, t.q_len, j0, end, chunk));
  }
  return next;
}

/// Packed queries against keys [k_begin, k_end), k_begin a multiple of the part. Overwrites the state.
template <class T, class Source> [[gnu::noinline]] void decode_chunks(const DecodeGroup<SumOf<T>>& t, Index k_begin,
    Index k_end, Source source, const DecodeScratch<SumOf<T>>& w, const DecodeState<SumOf<T>>& state) {
  const Index rows = rows_of(t);
  constexpr Index n = Simd<SumOf<T>>::kLanes;
  for (Index r = 0; r < round_up(rows, n); ++r) {
    state.row_max[r] = w.maximum[r] = -kInf<SumOf<T>>;
    state.row_sum[r] = 0;
    w.ones[r] = 1;
  }
  for (Index e = 0; e < rows * state.width; ++e) state.out[e] = 0;
  *state.attended = 0;
  const KeyRange reached = reach(t.scores, 0, t.q_len, w.chunk);
  const Index begin = larger(k_begin, reached.begin), end = smaller(k_end, reached.end);
  const auto next_chunk = [&](Index j0) { return live_chunk_of_group(t, j0, end, w.chunk); };
  for (Index j0 = next_chunk(begin); j0 < end; j0 = next_chunk(j0 + w.chunk))
    decode_chunk_keys<T>(t, j0, source, w, state);
}

template <class Sum>
void decode_part(const DecodeGroup<Sum>& t, Index k_begin, Index k_end, void* scratch, void* state) {
  for_stored_type<Sum>(t.keys.type, [&](auto stored) {
    using S = decltype(stored);
    const ListedScratch<S> w(scratch, rows_of(t), t.scores.head_dim, t.v_head_dim);
    const DecodeState<Sum> result(state, rows_of(t), t.v_head_dim);
    pack_queries<S>(t, w.decode);
#if !defined(QKV_SMALL_KERNELS)
    if constexpr (!std::is_same_v<S, Int4> && !std::is_same_v<S, double>) {  // the others gain little
      if (chunks_in_pages(t.keys, w.decode.chunk)) {
        decode_chunks<S>(t, k_begin, k_end, PageChunks<S>(t.keys, w), w.decode, result);
        return;
      }
    }
#endif
    decode_chunks<S>(t, k_begin, k_end, ListedChunks<S>(t.keys, w), w.decode, result);
  });
}

/// Merges `from`, whose keys come later, into `into`.
template <class Sum> void decode_merge(const DecodeGroup<Sum>& t, void* into_memory, const void* from_memory) {
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const Index rows = rows_of(t);
  const DecodeState<Sum> into(into_memory, rows, t.v_head_dim),
      from(const_cast<void*>(from_memory), rows, t.v_head_dim);
  for (Index r = 0; r < rows; r += n) {
    const V a = load<Sum>(into.row_max + r), b = load<Sum>(from.row_max + r), maximum = max_or_second(b, a);
    const V fa = exp2<Sum>(a - maximum), fb = exp2<Sum>(b - maximum);
    const V keep_a = a == maximum ? splat<Sum>(1) : fa, keep_b = b == maximum ? splat<Sum>(1) : fb;
    store<Sum>(into.row_max + r, maximum);
    store<Sum>(into.row_sum + r, fma(load<Sum>(into.row_sum + r), keep_a, load<Sum>(from.row_sum + r) * keep_b));
    for (Index lane = 0; lane < smaller<Index>(n, rows - r); ++lane) {
      Sum* out = into.out + (r + lane) * into.width;
      const Sum* more = from.out + (r + lane) * into.width;
      for (Index d = 0; d < into.width; d += n) {
        store<Sum>(
            out + d, fma(load<Sum>(out + d), splat<Sum>(keep_a[lane]), load<Sum>(more + d) * splat<Sum>(keep_b[lane])));
      }
    }
  }
  *into.attended |= *from.attended;
}

/// Divides by row_sum and writes the rows; lse from (row_max, row_sum).
template <class Sum> void decode_finish(const DecodeGroup<Sum>& t, void* state_memory) {
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const DecodeState<Sum> state(state_memory, rows_of(t), t.v_head_dim);
  const Sum applied = t.scores.dropout.threshold == 0 ? Sum{1} : kept_factor<Sum>(t.scores.dropout);
  alignas(64) Sum maxima[round_up(kDecodeRowLimit, n)] = {}, totals[round_up(kDecodeRowLimit, n)] = {};
  for (Index r = 0; r < rows_of(t); ++r) {
    Sum l = state.row_sum[r];
    const Sum* const sink = t.scores.sink == nullptr ? nullptr : t.scores.sink + r / t.q_len * t.scores.sink_stride;
    // A sum of 0 with a key attended: every kept score is -inf, and the formula's -inf - -inf is NaN without a sink.
    if (l == 0 && (*state.attended >> r & 1u) != 0 && !has_sink(sink)) l = kNan<Sum>;
    Sum maximum = state.row_max[r], share = 1;
    if (sink != nullptr) {
      const WithSink<Sum> whole = with_sink<Sum>(*sink, splat<Sum>(maximum), splat<Sum>(l));
      maximum = whole.maximum[0];
      l = whole.sum[0];
      share = whole.share[0];
    }
    maxima[r] = maximum, totals[r] = l;
    const V inverse = splat<Sum>((l == 0 ? Sum{0} : share / l) * applied);
    Sum* const sums = state.out + r * state.width;
    for (Index d = 0; d < t.v_head_dim; d += n) store<Sum>(sums + d, load<Sum>(sums + d) * inverse);
    for_float_type<Sum>(t.out.type, [&](auto stored) {
      using T = decltype(stored);
      T* const row = reinterpret_cast<T*>(t.out.data) + r / t.q_len * t.out_head_stride + r % t.q_len * t.out.stride;
      store_row_as(sums, t.v_head_dim, row);
    });
  }
  log_sum_exp(maxima, totals, rows_of(t), t.lse, static_cast<Sum*>(nullptr));
}

template <class Sum> Index decode_chunk_of(StoredType keys, Index head_dim, Index v_head_dim) {
  return for_stored_type<Sum>(keys, [&](auto stored) { return decode_chunk<decltype(stored)>(head_dim, v_head_dim); });
}
/// About a megabyte of K and V at D = 128, so that starting and merging a part are negligible.
template <class Sum> Index decode_part_keys(StoredType keys, Index head_dim, Index v_head_dim) {
  return 4 * decode_chunk_of<Sum>(keys, head_dim, v_head_dim);
}
template <class Sum> std::size_t decode_scratch_bytes(StoredType keys, Index rows, Index head_dim, Index v_head_dim) {
  return for_stored_type<Sum>(
      keys, [&](auto stored) { return ListedScratch<decltype(stored)>(nullptr, rows, head_dim, v_head_dim).bytes; });
}
template <class Sum> std::size_t decode_state_bytes(Index rows, Index v_head_dim) {
  return DecodeState<Sum>(nullptr, rows, v_head_dim).bytes;
}

template <class Sum> constexpr DecodeKernels<Sum> make_decode_kernels() {
  return {decode_chunk_of<Sum>, decode_part_keys<Sum>, decode_scratch_bytes<Sum>, decode_state_bytes<Sum>,
      decode_part<Sum>, decode_merge<Sum>, decode_finish<Sum>};
}

}  // namespace
}  // namespace qkv
