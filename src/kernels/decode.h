// Attention of few queries over many keys, where reading K and V is the limit: each row of them is read once for all queries of
// all heads that share it. Scores are dot products along D, kept query by query with keys in the lanes. A chunk of keys is four
// runs, walked side by side, and what comes next in each is fetched ahead: one stream alone does not fill the memory's queues.
// Parts of the keys stand alone (maximum, sum, result not yet divided) and are merged in the order of their keys.
// Not: many queries (forward.h), weights. Milakov & Gimelshein 2018 (1805.02867); Dao et al. 2023, "Flash-Decoding".
#pragma once

#include "kernels/decode_blocks.h"
#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace qkv {
namespace {

/// Keys of a chunk. Its four runs lie far enough apart to be streams of their own (32 KiB at 128 KiB a chunk reads 4 % faster
/// than 8 KiB); scores of 16 rows and 256 keys are 16 KiB.
template <class T>
Index decode_chunk(Index head_dim, Index v_head_dim) {
  const Index width = larger(head_dim, v_head_dim) * static_cast<Index>(sizeof(T));
  return larger<Index>(64, smaller<Index>(256, (Index{128} << 10) / width / 64 * 64));
}

/// Keys of a part: about a megabyte of K and V at D = 128, so that its start and its merge do not count.
template <class T>
Index decode_keys(Index head_dim, Index v_head_dim) {
  return 4 * decode_chunk<T>(head_dim, v_head_dim);
}

template <class T>
struct DecodeScratch {
  using Sum = Accumulator<T>;
  Sum* q;                         // [rows][head_dim], scaled, filled up with 0 to whole vectors
  Sum* scores;                    // [rows][chunk] by place: place 4 g + i is key i * run + g of the chunk
  Sum* applied;                   // [rows][chunk]: after dropout
  Sum* bias;                      // [chunk] by place
  Sum *maximum, *rescale, *ones;  // [rows]
  std::uint32_t *words, *kept;    // [chunk] by place: rows that may attend, rows that survive dropout
  std::uint32_t *by_key, *asked;  // [chunk] by key
  Index q_width, chunk, run;
  std::size_t bytes;

  DecodeScratch(void* base, Index rows, Index head_dim, Index v_head_dim) {
    constexpr Index n = Simd<Sum>::kLanes;
    Carver carver(base);
    q_width = round_up(head_dim, n);
    chunk = decode_chunk<T>(head_dim, v_head_dim);
    run = chunk / kRuns;
    q = carver.take<Sum>(rows * q_width);
    scores = carver.take<Sum>(rows * chunk);
    applied = carver.take<Sum>(rows * chunk);
    bias = carver.take<Sum>(chunk);
    maximum = carver.take<Sum>(round_up(rows, n));
    rescale = carver.take<Sum>(round_up(rows, n));
    ones = carver.take<Sum>(round_up(rows, n));
    words = carver.take<std::uint32_t>(chunk);
    kept = carver.take<std::uint32_t>(chunk);
    by_key = carver.take<std::uint32_t>(chunk);
    asked = carver.take<std::uint32_t>(chunk);
    bytes = carver.used();
  }
};

/// What some of the keys give.
template <class Sum>
struct DecodeState {
  Sum *row_max, *row_sum;  // [rows]; row_max in powers of two
  Sum* out;                // [rows][width]: [v_head_dim] filled up to whole vectors, not yet divided by row_sum
  std::uint32_t* seen;     // [1]: rows that may attend any of the keys
  Index width;
  std::size_t bytes;

  DecodeState(void* base, Index rows, Index v_head_dim) {
    constexpr Index n = Simd<Sum>::kLanes;
    Carver carver(base);
    width = round_up(v_head_dim, n);
    row_max = carver.take<Sum>(round_up(rows, n));
    row_sum = carver.take<Sum>(round_up(rows, n));
    out = carver.take<Sum>(rows * width);
    seen = carver.take<std::uint32_t>(1);
    bytes = carver.used();
  }
};

template <class T>
Index rows_of(const DecodeGroup<T>& t) {
  return t.q_len * t.group_size;
}

/// Which rows may attend which keys of a chunk, all heads of the group in one word.
template <class T>
inline LiveRows group_words(const DecodeGroup<T>& t, Index j0, Index nj, std::uint32_t* words, std::uint32_t* asked) {
  const TileMask& mask = t.scores.mask;
  if (mask.tile == nullptr) return {true, false, 0, nj};
  const std::uint32_t one_head = lane_bits(t.q_len);
  bool any = false, every = true;
  for (Index h = 0; h < t.group_size; ++h) {
    if (h == 0 || t.mask_differs) {
      const int verdict = mask.tile(mask.mask, mask.batch, mask.head + h, 0, t.q_len, j0, nj, asked);
      any |= verdict != kTileEmpty;
      every &= verdict == kTileFull;
      if (verdict != kTilePartial) {
        for (Index j = 0; j < nj; ++j) asked[j] = verdict == kTileFull ? one_head : 0;
      }
    }
    if (!t.mask_differs && (every || !any)) break;
    for (Index j = 0; j < nj; ++j) words[j] = (h == 0 ? 0 : words[j]) | asked[j] << (h * t.q_len);
  }
  LiveRows live{any, !every, 0, nj};
  if (!any || every) return live;
  while (live.lo < live.hi && words[live.lo] == 0) ++live.lo;
  while (live.lo < live.hi && words[live.hi - 1] == 0) --live.hi;
  live.any = live.lo < live.hi;
  return live;
}

/// by_place[4 g + i] = by_key[i * run + g] for live keys, 0 for others.
inline void order_by_place(const std::uint32_t* by_key, Index run, const LiveRows& live, std::uint32_t* by_place) {
  for (Index g = 0; g < run; ++g) {
    for (Index i = 0; i < kRuns; ++i) {
      const Index key = i * run + g;
      by_place[kRuns * g + i] = key >= live.lo && key < live.hi ? by_key[key] : 0;
    }
  }
}

/// A bias in powers of two. The lowest finite number, a common fill, stays finite: it must not become -inf by log2(e).
template <class T>
inline typename Simd<T>::V log2_of_bias(typename Simd<T>::V natural) {
  using V = typename Simd<T>::V;
  V scaled = natural * kLog2E<T>;
  scaled = scaled > kLargest<T> ? splat<T>(kLargest<T>) : scaled;
  scaled = scaled < -kLargest<T> ? splat<T>(-kLargest<T>) : scaled;
  return natural - natural == V{} ? scaled : natural;  // infinity and NaN stay what they are
}

/// The bias of one row by place, in natural units; 0 where no key is alive.
template <class T>
inline void place_bias(const DecodeGroup<T>& t, Index row, Index j0, const LiveRows& live, const DecodeScratch<T>& w) {
  using Sum = Accumulator<T>;
  const TileBias<T>& bias = t.scores.bias;
  const Sum* source =
      bias.data + row / t.q_len * t.bias_head_stride + row % t.q_len * bias.row_stride + j0 * bias.column_stride;
  for (Index i = 0; i < kRuns; ++i) {
    for (Index g = 0; g < w.run; ++g) {
      const Index key = i * w.run + g;
      w.bias[kRuns * g + i] = key >= live.lo && key < live.hi ? source[key * bias.column_stride] : Sum{0};
    }
  }
}

/// Turns dot products into scores: soft cap, bias, and -inf where not kept. A bias of -inf clears the row's bit of its key.
template <class T>
inline void finish_scores(const DecodeGroup<T>& t, Index j0, const LiveRows& live, const DecodeScratch<T>& w) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes, n_words = Simd<float>::kLanes;
  const bool biased = t.scores.bias.data != nullptr, capped = t.scores.softcap > 0;
  if (!live.masked && !biased && !capped) return;
  const V cap = splat<Sum>(t.scores.softcap * kLog2E<Sum>);
  for (Index r = 0; r < rows_of(t); ++r) {
    if (biased) place_bias(t, r, j0, live, w);
    for (Index first = 0; first < w.chunk; first += n_words) {
      std::uint32_t bits = ~0u;
      if (live.masked) {
        U32 words;
        __builtin_memcpy(&words, w.words + first, sizeof words);
        bits = bits_where<float>((words & (1u << r)) != 0);
      }
      for (Index place = first; place < first + n_words; place += n, bits >>= n % 32) {
        Sum* at = w.scores + r * w.chunk + place;
        V x = load<Sum>(at);
        if (capped) x = cap * tanh<Sum>(x);
        std::uint32_t kept = bits;
        if (biased) {
          const V natural = load<Sum>(w.bias + place);
          std::uint32_t never = bits_where<Sum>(natural == splat<Sum>(-kInf<Sum>));
          kept &= ~never;
          x += log2_of_bias<Sum>(natural);
          for (; never != 0; never &= never - 1) w.words[place + __builtin_ctz(never)] &= ~(1u << r);
        }
        store<Sum>(at, select_bits<V>(kept, x, splat<Sum>(-kInf<Sum>)));
      }
    }
  }
}

/// One chunk joins the running softmax: scores become exp2(s2 - max), row_max moves on, rescale is what the result so far must
/// be multiplied by: exactly 1 where the maximum stayed.
template <class T>
inline void softmax_chunk(Index rows, const DecodeScratch<T>& w, const DecodeState<Accumulator<T>>& state) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  for (Index r = 0; r < rows; ++r) {
    V largest = splat<Sum>(-kInf<Sum>);
    for (Index place = 0; place < w.chunk; place += n)
      largest = max_or_second(load<Sum>(w.scores + r * w.chunk + place), largest);
    w.maximum[r] = largest_lane<Sum>(largest);
  }
  for (Index r = 0; r < rows; r += n) {
    const V before = load<Sum>(state.row_max + r), maximum = max_or_second(load<Sum>(w.maximum + r), before);
    const V factor = exp2<Sum>(before - maximum);
    store<Sum>(w.rescale + r, before == maximum ? splat<Sum>(1) : factor);
    store<Sum>(state.row_max + r, maximum);
    store<Sum>(w.maximum + r,
               maximum == splat<Sum>(-kInf<Sum>) ? V{} : maximum);  // nothing alive yet: -inf - 0, not -inf + inf
  }
  for (Index r = 0; r < rows; ++r) {
    const V shift = splat<Sum>(w.maximum[r]);
    for (Index place = 0; place < w.chunk; place += n) {
      Sum* at = w.scores + r * w.chunk + place;
      store<Sum>(at, exp2<Sum>(load<Sum>(at) - shift));
    }
  }
}

/// w.applied = the weights that survive dropout.
template <class T>
inline void drop_weights(const DecodeGroup<T>& t, Index j0, const LiveRows& live, const DecodeScratch<T>& w) {
  using Sum = Accumulator<T>;
  TileDropout dropout = t.scores.dropout;
  for (Index h = 0; h < t.group_size; ++h, ++dropout.sequence_head) {
    dropout_words<Sum>(dropout, 0, t.q_len, j0, live.lo, live.hi, w.asked);
    for (Index key = live.lo; key < live.hi; ++key) {
      w.by_key[key] = (h == 0 ? 0 : w.by_key[key]) | (w.asked[key] & lane_bits(t.q_len)) << (h * t.q_len);
    }
  }
  order_by_place(w.by_key, w.run, live, w.kept);
  for (Index r = 0; r < rows_of(t); ++r) {
    for (Index place = 0; place < w.chunk; ++place) {
      w.applied[r * w.chunk + place] = (w.kept[place] >> r & 1u) != 0 ? w.scores[r * w.chunk + place] : Sum{0};
    }
  }
}

/// row_sum[r] = row_sum[r] * factor[r] + the weights of places [4 begin, 4 end), added in the order in which rows of V are.
template <class T, int kR>
inline void add_sums(const T* weights, Index weights_row, Index begin, Index end, const T* factor, T* row_sum) {
  T sum[kR] = {};
  for (Index place = kRuns * begin; place < kRuns * end; ++place) {
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) sum[r] += weights[r * weights_row + place];
  }
  for (int r = 0; r < kR; ++r) row_sum[r] = row_sum[r] * factor[r] + sum[r];
}

/// What value_rows does, over kept pairs only: for chunks that hide NaN or infinity behind the mask. The same sums otherwise.
template <class T>
inline void add_kept_values(const DecodeGroup<T>& t, const DecodeScratch<T>& w, const Accumulator<T>* weights, const Runs<T>& v,
                            Index begin, Index end, const Accumulator<T>* factor, const DecodeState<Accumulator<T>>& state) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  for (Index r = 0; r < rows_of(t); ++r) {
    for (Index d = 0; d < t.v_head_dim; d += n) {
      const int rest = static_cast<int>(smaller<Index>(n, t.v_head_dim - d));
      V sum{};
      for (Index place = kRuns * begin; place < kRuns * end; ++place) {
        if ((w.words[place] >> r & 1u) == 0) continue;
        const V value = load_row_tail(v.row(place / kRuns) + place % kRuns * v.between() + d, rest);
        sum = fma(splat<Sum>(weights[r * w.chunk + place]), value, sum);
      }
      Sum* place = state.out + r * state.width + d;
      store<Sum>(place, fma(load<Sum>(place), splat<Sum>(factor[r]), sum));
    }
  }
}

/// True when rows of V that some query must not see hold NaN or infinity: 0 * NaN is NaN.
template <class T>
inline bool hides_nonfinite_values(const DecodeGroup<T>& t, const DecodeScratch<T>& w, const Runs<T>& v) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const std::uint32_t all = lane_bits(rows_of(t));
  V marks{};
  for (Index g = 0; g < w.run; ++g) {
    const SomeRuns live = v.live(g);
    for (Index i = live.first; i < live.last; ++i) {
      if ((w.words[kRuns * g + i] & all) == all) continue;
      const T* row = v.row(g) + i * v.between();
      Index d = 0;
      for (; d + n <= t.v_head_dim; d += n) marks = fma(load_row(row + d), V{}, marks);
      if (d < t.v_head_dim) marks = fma(load_row_tail(row + d, static_cast<int>(t.v_head_dim - d)), V{}, marks);
    }
  }
  return bits_where<Sum>(marks != marks) != 0;
}

/// Places of a run after which sums and results are written back: its rows of V stay in L1 while all queries pass over them.
constexpr Index kDecodeSteps = 4;

template <class T>
inline void decode_values(const DecodeGroup<T>& t, Index j0, const LiveRows& live, const DecodeScratch<T>& w, const Runs<T>& v,
                          const DecodeState<Accumulator<T>>& state) {
  using Sum = Accumulator<T>;
  const bool hides = live.masked && hides_nonfinite_values(t, w, v);
  const Sum* weights = w.scores;
  if (t.scores.dropout.threshold != 0) {
    drop_weights(t, j0, live, w);
    weights = w.applied;
  }
  for (Index g = 0; g < w.run; g += kDecodeSteps) {
    const Index end = g + kDecodeSteps;
    const Sum* factor = g == 0 ? w.rescale : w.ones;
    for_row_blocks(
        rows_of(t), [&](auto count, Index r) __attribute__((always_inline)) {
          constexpr int rows = decltype(count)::value;
          add_sums<Sum, rows>(w.scores + r * w.chunk, w.chunk, g, end, factor + r, state.row_sum + r);
          if (hides) return;
          value_rows<T, rows>(weights + r * w.chunk, w.chunk, v, g, end, t.v_head_dim, state.out + r * state.width, state.width,
                              factor + r, share_of_runs(r, rows, rows_of(t)));
        });
    if (hides) add_kept_values(t, w, weights, v, g, end, factor, state);
  }
}

template <class T>
inline void decode_chunk_keys(const DecodeGroup<T>& t, Index j0, const DecodeScratch<T>& w,
                              const DecodeState<Accumulator<T>>& state) {
  const TileScores<T>& s = t.scores;
  const Index nj = smaller(w.chunk, s.kv_len - j0);
  LiveRows live = group_words(t, j0, nj, w.by_key, w.asked);
  if (!live.any) return;
  const std::uint32_t all = lane_bits(rows_of(t));
  const bool whole = live.lo == 0 && live.hi == w.chunk;
  if (!live.masked && (!whole || s.bias.data != nullptr)) {
    for (Index key = live.lo; key < live.hi; ++key) w.by_key[key] = all;
    live.masked = true;
  }
  if (live.masked) order_by_place(w.by_key, w.run, live, w.words);
  const Index row_bytes =
      larger(s.k_stride, t.v_stride) > 0 ? larger(s.head_dim, t.v_head_dim) * static_cast<Index>(sizeof(T)) : 1;
  const Index ahead = larger<Index>(1, smaller<Index>(w.run, kAheadBytes / row_bytes));
  const Runs<T> k{s.k + j0 * s.k_stride, t.v + j0 * t.v_stride, s.k_stride, t.v_stride, w.run, ahead, live.lo, live.hi};
  const Runs<T> v{
      t.v + j0 * t.v_stride, s.k + (j0 + w.chunk) * s.k_stride, t.v_stride, s.k_stride, w.run, ahead, live.lo, live.hi};
  for (Index g = 0; g < w.run; ++g) {
    const SomeRuns runs = k.live(g);
    if (runs.first >= runs.last) continue;
    const T *row = k.row(g), *soon = k.soon(g);
    const Index between = k.between(), soon_between = k.soon_between(g);
    for_row_blocks(
        rows_of(t), [&](auto count, Index r) __attribute__((always_inline)) {
          constexpr int rows = decltype(count)::value;
          const Accumulator<T>* q = w.q + r * w.q_width;
          Accumulator<T>* scores = w.scores + r * w.chunk + kRuns * g;
          dot_block<T, rows>(q, w.q_width, row, between, runs, s.head_dim, soon, soon_between,
                             share_of_runs(r, rows, rows_of(t)), scores, w.chunk);
        });
  }
  finish_scores(t, j0, live, w);
  std::uint32_t seen = all;
  if (live.masked) {
    seen = 0;
    for (Index place = 0; place < w.chunk; ++place) seen |= w.words[place];
  }
  *state.seen |= seen;
  softmax_chunk(rows_of(t), w, state);
  decode_values(t, j0, live, w, v, state);
}

/// Rows of Q, scaled, as whole vectors.
template <class T>
inline void pack_queries(const DecodeGroup<T>& t, const DecodeScratch<T>& w) {
  using Sum = Accumulator<T>;
  constexpr Index n = Simd<Sum>::kLanes;
  const TileScores<T>& s = t.scores;
  const Sum factor = s.softcap > 0 ? s.scale / s.softcap : s.scale * kLog2E<Sum>;
  for (Index r = 0; r < rows_of(t); ++r) {
    const T* row = s.q + r / t.q_len * t.q_head_stride + r % t.q_len * s.q_stride;
    for (Index d = 0; d < s.head_dim; d += n) {
      const int rest = static_cast<int>(smaller<Index>(n, s.head_dim - d));
      store<Sum>(w.q + r * w.q_width + d, load_row_tail(row + d, rest) * factor);
    }
  }
}

/// What keys [k_begin, k_end) give, k_begin a multiple of the part. Scratch and state hold nothing before.
template <class T>
void decode_part(const DecodeGroup<T>& t, Index k_begin, Index k_end, void* scratch, void* state_memory) {
  using Sum = Accumulator<T>;
  const Index rows = rows_of(t);
  const DecodeScratch<T> w(scratch, rows, t.scores.head_dim, t.v_head_dim);
  const DecodeState<Sum> state(state_memory, rows, t.v_head_dim);
  constexpr Index n = Simd<Sum>::kLanes;
  for (Index r = 0; r < round_up(rows, n); ++r) {
    state.row_max[r] = w.maximum[r] = -kInf<Sum>;
    state.row_sum[r] = 0;
    w.ones[r] = 1;
  }
  for (Index e = 0; e < rows * state.width; ++e) state.out[e] = 0;
  *state.seen = 0;
  pack_queries(t, w);
  Index begin = 0, end = t.scores.kv_len;
  const TileMask& mask = t.scores.mask;
  if (mask.key_range != nullptr) mask.key_range(mask.mask, mask.batch, mask.head, 0, t.q_len, &begin, &end);
  begin = larger(k_begin, begin / w.chunk * w.chunk);
  end = smaller(k_end, end);
  for (Index j0 = begin; j0 < end; j0 += w.chunk) decode_chunk_keys(t, j0, w, state);
}

/// into = into and from, whose keys come later.
template <class T>
void decode_merge(const DecodeGroup<T>& t, void* into_memory, const void* from_memory) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  const Index rows = rows_of(t);
  const DecodeState<Sum> into(into_memory, rows, t.v_head_dim), from(const_cast<void*>(from_memory), rows, t.v_head_dim);
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
        store<Sum>(out + d, fma(load<Sum>(out + d), splat<Sum>(keep_a[lane]), load<Sum>(more + d) * splat<Sum>(keep_b[lane])));
      }
    }
  }
  *into.seen |= *from.seen;
}

/// Divides by row_sum and writes the rows; lse from (row_max, row_sum).
template <class T>
void decode_finish(const DecodeGroup<T>& t, void* state_memory) {
  using Sum = Accumulator<T>;
  using V = typename Simd<Sum>::V;
  constexpr int n = Simd<Sum>::kLanes;
  constexpr double ln2 = 0.69314718055994530942;
  const DecodeState<Sum> state(state_memory, rows_of(t), t.v_head_dim);
  const Sum applied = t.scores.dropout.threshold == 0 ? Sum{1} : kept_factor<Sum>(t.scores.dropout);
  for (Index r = 0; r < rows_of(t); ++r) {
    Sum l = state.row_sum[r];
    // Not an empty row: every kept score is -inf, and the formula's -inf - -inf is NaN.
    if (l == 0 && (*state.seen >> r & 1u) != 0) l = kNan<Sum>;
    t.lse[r] = l == 0 ? -kInf<Sum>
                      : static_cast<Sum>(static_cast<double>(state.row_max[r]) * ln2 + __builtin_log(static_cast<double>(l)));
    const V inverse = splat<Sum>((l == 0 ? Sum{0} : Sum{1} / l) * applied);
    T* row = t.out + r / t.q_len * t.out_head_stride + r % t.q_len * t.out_stride;
    for (Index d = 0; d < t.v_head_dim; d += n) {
      store_row(row + d, load<Sum>(state.out + r * state.width + d) * inverse, smaller<Index>(n, t.v_head_dim - d));
    }
  }
}

template <class T>
constexpr DecodeKernels<T> make_decode_kernels() {
  return {
      decode_chunk<T>,
      decode_keys<T>,
      [](Index rows, Index head_dim, Index v_head_dim) { return DecodeScratch<T>(nullptr, rows, head_dim, v_head_dim).bytes; },
      [](Index rows, Index v_head_dim) { return DecodeState<Accumulator<T>>(nullptr, rows, v_head_dim).bytes; },
      decode_part<T>,
      decode_merge<T>,
      decode_finish<T>};
}

}  // namespace
}  // namespace qkv
