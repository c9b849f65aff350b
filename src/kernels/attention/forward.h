// Tiled forward attention with online softmax: for each chunk of keys, S^T = K Q^T, softmax, O^T += V^T P^T (with P^T
// instead of S^T). Scores are kept transposed, one query per lane: K and V are read by broadcast from their natural
// rows, softmax needs no horizontal step, and only the small Q^T panel is packed. Policies: Policy (where rows come
// from, and the products: PagedRows, Bf16Rows), Observer (softmax.h). Milakov & Gimelshein 2018 (1805.02867); Dao 2023
// (2307.08691), alg. 1.
#pragma once

#include "kernels/attention/forward_weights.h"
#include "kernels/attention/paged_rows.h"
#include "kernels/attention/softmax.h"
#include "simd/log.h"

namespace qkv {
namespace {

/// Rows of fewer keys are shifted by the score of their first one, so that equal scores, or a single key, give exact
/// weights.
constexpr Index kUnshiftedKeys = 32;

/// Whether the first live tile of a strip may take the fast path of softmax.h. Where it is masked or short, rows may
/// have few keys: the shift is then the score of the first key, provided that every lane attends it.
template <class T>
inline bool starts_quickly(const LiveRange& live, Index ni, const std::uint32_t* lane_mask, const T* scores, T* shift) {
  if (!live.masked && live.hi - live.lo >= kUnshiftedKeys) return true;
  if (live.masked && (lane_mask[live.lo] & lane_bits(ni)) != lane_bits(ni)) return false;
  for (Index lane = 0; lane < live_vectors<T>(ni) * Simd<T>::kLanes; ++lane)
    shift[lane] = scores[live.lo * strip_lanes<T>() + lane];
  return true;
}

template <class T, class Policy, class Observer> inline void forward_strip_chunk(const ForwardTile<T>& t,
    const ForwardScratch<T>& w, Policy& rows, const Observer& observer, const StripRange& r, Index j0, Index nj) {
  const ScoreParams<T>& s = t.scores;
  T* scores = t.exponentials == nullptr ? w.scores : t.exponentials + j0 * strip_lanes<T>();
  ScoreTile tile = rows.score(t, w, r, j0, nj, scores);
  const LiveRange& live = tile.live;
  T *row_max = w.row_max + r.strip * strip_lanes<T>(), *row_sum = w.row_sum + r.strip * strip_lanes<T>();
  if (!live.any) {
    if (t.exponentials != nullptr) keep_chunk(t, {}, j0, nj, row_max);
    return;
  }
  const std::uint32_t lanes = lane_bits(r.ni);
  std::uint32_t& attended = w.attended[r.strip];
  const bool first = attended == 0;
  // attend their first key in this chunk
  const std::uint32_t fresh = attending_lanes(live, w.lane_mask) & ~attended & lanes;
  attended |= fresh;
  const int vectors = live_vectors<T>(r.ni);
  std::uint32_t by_maximum = w.by_maximum[r.strip];
  if (first && !s.invariant) {
    if (!starts_quickly(live, r.ni, w.lane_mask, scores, row_max)) by_maximum = lanes;
  } else {
    by_maximum |= fresh;  // few keys may follow: equal scores must give exact weights
  }
  observer.start_chunk(r, j0, tile.ranges, live.masked ? w.lane_mask : nullptr, scores, row_sum);
  while (const std::uint32_t failed = chunk_softmax(scores, tile.ranges, live.masked ? w.lane_mask : nullptr,
             attended & lanes, by_maximum, row_max, row_sum, w.rescale, observer)) {
    by_maximum |= failed;
    w.by_maximum[r.strip] |= failed;
    tile = rows.score(t, w, r, j0, nj, scores);
  }
  observer.end_chunk(r, j0, live, w.lane_mask, scores, row_sum, by_maximum != 0 ? w.rescale : nullptr);
  if (t.out.data == nullptr) return;
  T* out = w.out_panels + r.strip * strip_lanes<T>() * t.v_head_dim;
  if (live.masked) rows.read_hidden_values(t, j0, nj);
  const bool hides = live.masked && hides_nonfinite(rows.v.data, rows.v.stride, t.v_head_dim, live, lanes, w.lane_mask);
  if (s.dropout.threshold != 0) {
    dropout_mask<T>(s.dropout, r.i0, r.ni, j0, live.lo, live.hi, w.kept);
    drop_lanes(scores, vectors, live.lo, live.hi, w.kept);
  }
  if (t.exponentials != nullptr) keep_chunk(t, tile.ranges, j0, nj, row_max);
  const bool sets = Policy::kSets && first && !hides && tile.ranges.range[0].count == vectors;
  if (first && !sets) zero_panel(out, t.v_head_dim);
  if (!first && by_maximum != 0) rescale_panel(out, t.v_head_dim, w.rescale);
  for (int i = 0; i < tile.ranges.count; ++i) {
    const VectorRange& range = tile.ranges.range[i];
    if constexpr (Policy::kSets) {
      if (sets && i == 0) {  // a diagonal's second range adds
        rows.set_values(t, r, live, range, scores, out);
        continue;
      }
    }
    if (hides) {
      rows.add_kept_values(t, w, range, scores, out);
    } else {
      rows.add_values(t, r, live, range, nj, scores, out);
    }
  }
}

/// No key attended yet; the lanes `by_maximum` do not take the fast path.
template <class T> inline void start_strip(const ForwardScratch<T>& w, Index strip, std::uint32_t by_maximum) {
  w.attended[strip] = 0;
  w.by_maximum[strip] = by_maximum;
  for (Index lane = strip * strip_lanes<T>(); lane < (strip + 1) * strip_lanes<T>(); ++lane) {
    w.row_max[lane] = -kInf<T>;
    w.row_sum[lane] = 0;
  }
}

/// Computes the natural lse from (row_max, row_sum) and the sink, divides out by the sum and transposes it back.
/// row_sum becomes its reciprocal. Returns the lanes whose out holds NaN or infinity, or whose keys a sink far above
/// the shift made 0.
template <class T> inline std::uint32_t finish_strip(
    const ForwardTile<T>& t, const ForwardScratch<T>& w, const StripRange& r, const TypedRows<T>& out) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  const Index first = r.strip * strip_lanes<T>();
  T *row_max = w.row_max + first, *row_sum = w.row_sum + first;
  const int vectors = live_vectors<T>(r.ni);
  const std::uint32_t attended = has_sink(t.scores.sink) ? 0 : w.attended[r.strip];
  for (int v = 0; v < vectors; ++v) {
    // A sum of 0 with a key attended: every kept score is -inf, and the formula's -inf - -inf is NaN without a sink.
    const V l = load<T>(row_sum + v * n);
    const std::uint32_t nothing = bits_where<T>(l == V{}) & (attended >> (v * n));
    store<T>(row_sum + v * n, select_bits<V>(nothing, splat<T>(kNan<T>), l));
  }
  alignas(64) T total_max[strip_lanes<T>()], total[strip_lanes<T>()];  // with the sink
  std::uint32_t lost = 0;
  for (int v = 0; v < vectors; ++v) {
    const V maximum = load<T>(row_max + v * n), l = load<T>(row_sum + v * n);
    const bool sinks = t.scores.sink != nullptr;
    const WithSink<T> whole = sinks ? with_sink<T>(*t.scores.sink, maximum, l) : WithSink<T>{maximum, l, splat<T>(1)};
    store<T>(total_max + v * n, whole.maximum);
    store<T>(total + v * n, whole.sum);
    const V share = whole.sum == V{} ? V{} : whole.share / whole.sum;
    store<T>(row_sum + v * n, share);
    if (sinks) lost |= (bits_where<T>(share == V{}) & bits_where<T>(l > V{})) << (v * n);
  }
  log_sum_exp(total_max, total, r.ni, t.lse + first, t.lse_low == nullptr ? nullptr : t.lse_low + first);
  for (Index lane = 0; t.row_max2 != nullptr && lane < r.ni; ++lane) {
    t.row_max2[first + lane] = total_max[lane];
    t.row_sum[first + lane] = total[lane];
  }
  const V factor = splat<T>(t.scores.dropout.threshold == 0 ? T{1} : kept_factor<T>(t.scores.dropout));
  for (int v = 0; v < vectors; ++v) {
    const V inverse = load<T>(row_sum + v * n);
    store<T>(w.rescale + v * n, inverse * factor);
  }
  if (out.data == nullptr) return lost;
  T* panel = w.out_panels + first * t.v_head_dim;
  if (w.attended[r.strip] == 0) zero_panel(panel, t.v_head_dim);
  return lost | unpack_transposed<T>(panel, strip_lanes<T>(), r.ni, t.v_head_dim, w.rescale, out.data, out.stride);
}

/// The scratch of a tile, or the sums of an earlier call.
template <class T> inline ForwardScratch<T> with_carried(ForwardScratch<T> w, const CarriedRows<T>* carried) {
  if (carried == nullptr) return w;
  w.out_panels = carried->out;
  w.row_max = carried->row_max;
  w.row_sum = carried->row_sum;
  w.attended = carried->attended;
  w.by_maximum = carried->by_maximum;
  return w;
}

/// About how many blocks the products of a tile have, over which what is fetched ahead is spread: a burst of more lines
/// than a core can wait for stops the products. A strip of few queries has half as many. A diagonal computes half of
/// the scores in blocks of one vector and V in two ranges, which are as many blocks.
template <class T> inline Index blocks_of(const ForwardTile<T>& t, Index keys) {
  constexpr Index strip = strip_lanes<T>();
  const Index last = t.q_count % strip, chunks = (keys + t.scores.key_tile - 1) / t.scores.key_tile;
  const Index halves = t.q_count / strip * 2 + (last == 0 ? 0 : last <= kLanesAtOnce<T> ? 1 : 2);
  return halves * (keys + chunks * t.v_head_dim) / (2 * kRows);
}

/// What queries r read of keys [begin, end), over the products of one chunk: rows of the bias; K and V if they stream.
template <class T> [[gnu::noinline]] void fetch_chunk(
    const ForwardTile<T>& t, const StripRange& r, Index begin, Index end, bool streams, Ahead& ahead) {
  ahead = {};
  if (begin >= end) return;
  const TileBias<T>& bias = t.scores.bias;
  if (has_rows(bias)) add_rows(ahead, bias.data + r.i0 * bias.row_stride + begin, bias.row_stride, end - begin, r.ni);
  if (streams) {
    add_keys(ahead, t.keys, t.keys.k, begin, end, t.scores.head_dim);
    if (t.out.data != nullptr) add_keys(ahead, t.keys, t.keys.v, begin, end, t.v_head_dim);
  }
  begin_ahead(&ahead, blocks_of(t, t.scores.key_tile) * r.ni / t.q_count);
}

/// Forward of one query tile. `rows` packs queries, has the rows of a chunk of keys, and multiplies. The result is
/// bit-identical with any observer.
template <class T, class Policy, class Observer = NoObserver> inline void forward_tile(
    ForwardTile<T> t, const ForwardScratch<T>& scratch, Policy& rows, const Observer& observer = {}) {
  const ScoreParams<T>& s = t.scores;
  const CarriedRows<T>* const carried = t.carried;
  const ForwardScratch<T> w = with_carried(scratch, carried);
  const Index strips = (t.q_count + strip_lanes<T>() - 1) / strip_lanes<T>();
  const KeyRange reached = reach(s, t.q_begin, t.q_count, s.key_tile);
  const Index begin = carried == nullptr ? reached.begin : larger(reached.begin, carried->k_begin);
  const Index end = carried == nullptr ? reached.end : smaller(reached.end, carried->k_end);
  Ahead of_chunk;
  StripRange chunk_rows{0, t.q_begin, t.q_count};  // the rows that meet a chunk one after the other
  const Index pair_bytes = row_bytes(t.keys.type, s.head_dim) + row_bytes(t.keys.type, t.v_head_dim);
  const bool streams = (end - begin) * pair_bytes >= kStreamedBytes;
  const bool by_chunk = streams || has_rows(s.bias);
  Ahead* const of_tile = t.ahead;  // then fetched during the last chunk
  if (by_chunk) {
    t.ahead = &of_chunk;
    fetch_chunk(t, chunk_rows, begin, smaller(begin + s.key_tile, end), false, of_chunk);
    fetch_rest(of_chunk);
  }
  begin_ahead(of_tile, blocks_of(t, by_chunk ? s.key_tile : end - begin));
  const auto for_strips = [&](const auto& strip_work) {
    for (Index strip = 0; strip < strips; ++strip) strip_work(strip_range(t, strip));
  };
  // Chunks that no query attends are skipped, unless their exponentials are kept and must become 0.
  const auto next_chunk = [&](Index j0) {
    return t.exponentials != nullptr ? j0 : live_chunk(s, t.q_begin, t.q_count, j0, end);
  };
  const auto for_live_chunks = [&](const auto& chunk) {
    for (Index j0 = next_chunk(begin), next; j0 < end; j0 = next) {
      next = next_chunk(j0 + s.key_tile);
      const Index nj = smaller(s.key_tile, s.kv_len - j0);
      rows.read_keys(t, j0, nj);
      if (t.out.data != nullptr) rows.read_values(t, j0, nj);
      if (by_chunk) {
        fetch_chunk(t, chunk_rows, next, smaller(next + s.key_tile, end), streams, of_chunk);
        t.ahead = next < end || of_tile == nullptr ? &of_chunk : of_tile;
      }
      chunk(j0, nj);
    }
  };
  for_strips([&](const StripRange& r) {
    rows.pack_queries(t, w, r);
    if (carried == nullptr) start_strip(w, r.strip, 0);
    observer.start_strip(r);
  });
  const auto finish = [&](const StripRange& r) {
    const TypedRows<T> out = rows.out(t, w, r);
    const std::uint32_t strange = finish_strip(t, w, r, out) & lane_bits(r.ni);
    if (carried != nullptr) {
      carried->overflown[r.strip] = strange;
    } else if (strange != 0) {  // p above 1 may overflow where the formula's p <= 1 would not: all keys by the maximum
      start_strip(w, r.strip, strange);
      observer.start_strip(r);
      for_live_chunks([&](Index j0, Index nj) { forward_strip_chunk(t, w, rows, observer, r, j0, nj); });
      finish_strip(t, w, r, out);
    }
    observer.finish(r, w.row_max + r.strip * strip_lanes<T>(), w.row_sum + r.strip * strip_lanes<T>());
    if (t.out.data != nullptr) rows.end_out(t, w, r);
  };
  if (t.exponentials != nullptr) {
    for_strips([&](const StripRange& r) {
      chunk_rows = r;
      for_live_chunks([&](Index j0, Index nj) { forward_strip_chunk(t, w, rows, observer, r, j0, nj); });
      finish(r);
      write_kept_weights(t, w, rows, r, begin, end);
    });
    return;
  }
  for_live_chunks([&](Index j0, Index nj) {
    for_strips([&](const StripRange& r) { forward_strip_chunk(t, w, rows, observer, r, j0, nj); });
  });
  if (carried != nullptr && carried->overflown == nullptr) return;
  for_strips(finish);
  if (t.weights == nullptr) return;
  for (Index j0 = 0; j0 < s.kv_len; j0 += s.key_tile) {
    const Index nj = smaller(s.key_tile, s.kv_len - j0);
    rows.read_keys(t, j0, nj);
    for_strips([&](const StripRange& r) { write_weights(t, w, rows, r, j0, nj); });
  }
}

template <class T> void forward(const ForwardTile<T>& t, void* scratch) {
  const ForwardScratch<T> w(scratch, t.scores.head_dim, t.v_head_dim, t.q_count, copies_rows(t));
  PagedRows<T, true> rows(t, w);
  forward_tile(t, w, rows);
}

}  // namespace
}  // namespace qkv
