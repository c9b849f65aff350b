// The weights of a query tile computed again, chunk by chunk, with each row's normaliser known, without storing them:
// sums over queries, sums of blocks, whole rows, the largest of each row. For backward the same of weights times their
// gradient.
#pragma once

#include "kernels/attention/forward.h"
#include "kernels/capture/params.h"

namespace qkv {
namespace {

template <class T> struct SweepScratch {
  static constexpr Index kWidestLanes = 64 / sizeof(T);
  Carver carver;
  Index keys, queries;
  // [key_tile][lanes]: weights summed over the vectors of all strips; with invariant bits over queries 64 bytes apart
  T* column_lanes = carver.array<T>(keys * kWidestLanes);
  T* gradients = carver.array<T>(keys * strip_lanes<T>());  // [key_tile][strip]: dout . v
  T* thresholds = carver.array<T>(queries);                 // the smallest of the largest that are kept so far
  std::size_t bytes = carver.used();

  SweepScratch(void* base, Index d, Index dv, Index count)
      : carver(base), keys(key_tile<T>(d, dv)), queries(round_up(count, strip_lanes<T>())) {}
};

template <class T> class CaptureSweeper {
  using V = typename Simd<T>::V;
  static constexpr int n = Simd<T>::kLanes;

 public:
  CaptureSweeper(const CaptureSweep<T>& t, const ForwardScratch<T>& scratch, const SweepScratch<T>& own)
      : t_(t),
        w_(scratch),
        own_(own),
        column_lanes_(t.tile.scores.invariant ? SweepScratch<T>::kWidestLanes : Index{n}) {}

  void start() const {
    for (Index i = 0; i < t_.tile.q_count * t_.top_k; ++i) {
      t_.top_values[i] = 0;
      t_.top_keys[i] = -1;
    }
    for (Index i = 0; t_.top_k > 0 && i < t_.tile.q_count; ++i) own_.thresholds[i] = least();
  }

  void start_chunk(Index nj) const {
    if (t_.columns == nullptr) return;
    for (Index e = 0; e < nj * column_lanes_; e += n) store<T>(own_.column_lanes + e, V{});
  }

  /// Whether anything is wanted of a strip.
  bool wants(const StripRange& r) const {
    if (t_.columns != nullptr || t_.map != nullptr || t_.top_k > 0) return true;
    for (Index lane = 0; lane < r.ni; ++lane) {
      if (t_.rows[r.i0 - t_.tile.q_begin + lane] != nullptr) return true;
    }
    return false;
  }

  void strip_chunk(const ForwardTile<T>& f, const PagedRows<T>& rows, const StripRange& r, Index j0, Index nj) const {
    const LiveRange live = rows.score(f, w_, r, j0, nj, w_.scores).live;
    if (!live.any) return;
    make_weights(r, j0, live);
    if (t_.dout.data != nullptr) times_gradient(rows, r, live);
    if (t_.columns != nullptr) add_columns(r, live);
    if (t_.map != nullptr) add_map(r, j0, live);
    if (t_.rows != nullptr) set_rows(r, j0, live);
    if (t_.top_k > 0) keep_largest(r, j0, live);
  }

  void end_chunk(Index j0, Index nj) const {
    if (t_.columns == nullptr) return;
    for (Index first = 0; first < nj; first += n) {
      V sum{};
      for (Index part = 0; part < column_lanes_; part += n) {
        V square[n];
        load_square<T>(own_.column_lanes + first * column_lanes_ + part, column_lanes_, nj - first, n, square);
        transpose_square<T>(square);
        for (int lane = 0; lane < n; ++lane) sum += square[lane];
      }
      for (Index j = 0; j < smaller<Index>(n, nj - first); ++j)
        t_.columns[j0 + first + j] += static_cast<double>(sum[j]);
    }
  }

 private:
  /// scores -> w, 0 where not kept and in lanes without a query, also where those hold NaN.
  void make_weights(const StripRange& r, Index j0, const LiveRange& live) const {
    const bool two = live_vectors<T>(r.ni) == kVectors;
    if (live.masked || r.ni % n != 0) {
      two ? make_weights<kVectors, true>(r, live) : make_weights<1, true>(r, live);
    } else {
      two ? make_weights<kVectors, false>(r, live) : make_weights<1, false>(r, live);
    }
    const TileDropout& dropout = t_.tile.scores.dropout;
    if (dropout.threshold == 0 || (!t_.applied && t_.dout.data == nullptr)) return;
    dropout_mask<T>(dropout, r.i0, r.ni, j0, live.lo, live.hi, w_.kept);
    drop_lanes(w_.scores, live_vectors<T>(r.ni), live.lo, live.hi, w_.kept);
    const T factor = kept_factor<T>(dropout);
    for (Index e = live.lo * strip_lanes<T>(); e < live.hi * strip_lanes<T>(); e += n)
      store<T>(w_.scores + e, load<T>(w_.scores + e) * factor);
  }

  template <int kCount, bool kMasked> void make_weights(const StripRange& r, const LiveRange& live) const {
    V shift[kCount], inverse[kCount];
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      const Index first = r.i0 - t_.tile.q_begin + v * n;
      const int lanes = static_cast<int>(smaller<Index>(n, t_.tile.q_count - first));
      shift[v] = shift_of<T>(load_tail<T>(t_.shift + first, lanes));
      inverse[v] = load_tail<T>(t_.inverse + first, lanes);
    }
    T* weights = w_.scores + live.lo * strip_lanes<T>();
    for (Index j = live.lo; j < live.hi; ++j, weights += strip_lanes<T>()) {
      const std::uint32_t kept = kMasked ? kept_lanes(r, live, j) : 0;
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) {
        V weight = exp2<T>(load<T>(weights + v * n) - shift[v]) * inverse[v];
        if constexpr (kMasked) weight = select_bits<V>(kept >> (v * n), weight, V{});
        store<T>(weights + v * n, weight);
      }
    }
  }

  std::uint32_t kept_lanes(const StripRange& r, const LiveRange& live, Index j) const {
    return (live.masked ? w_.lane_mask[j] : ~0u) & lane_bits(r.ni);
  }

  /// w -> w (dout . v), 0 where not kept, also where v holds NaN.
  void times_gradient(const PagedRows<T>& rows, const StripRange& r, const LiveRange& live) const {
    const int vectors = live_vectors<T>(r.ni);
    // gradients[j, lane] = sum_d v[j, d] * dout[lane, d]
    product_vectors<T, Store::kSet>({.a = rows.v.data + live.lo * rows.v.stride,
                                        .a_row = rows.v.stride,
                                        .a_depth = 1,
                                        .b = w_.out_panels + r.strip * strip_lanes<T>() * t_.tile.v_head_dim,
                                        .b_row = strip_lanes<T>(),
                                        .c = own_.gradients + live.lo * strip_lanes<T>(),
                                        .c_row = strip_lanes<T>(),
                                        .depth = t_.tile.v_head_dim},
        live.hi - live.lo, 0, vectors);
    for (Index j = live.lo; j < live.hi; ++j) {
      const std::uint32_t kept = kept_lanes(r, live, j);
      for (int v = 0; v < vectors; ++v) {
        T* weights = w_.scores + j * strip_lanes<T>() + v * n;
        V product = load<T>(weights) * load<T>(own_.gradients + j * strip_lanes<T>() + v * n);
        if (t_.positive) product = product < V{} ? V{} : product;  // NaN stays
        store<T>(weights, select_bits<V>(kept >> (v * n), product, V{}));
      }
    }
  }

  void add_columns(const StripRange& r, const LiveRange& live) const {
    const bool two = live_vectors<T>(r.ni) == kVectors;
    for (Index j = live.lo; j < live.hi; ++j) {
      T* sums = own_.column_lanes + j * column_lanes_;
      const T* weights = w_.scores + j * strip_lanes<T>();
      for (int v = 0; t_.tile.scores.invariant && v < live_vectors<T>(r.ni); ++v) {
        T* const own = sums + (r.strip * strip_lanes<T>() + v * n) % column_lanes_;
        store<T>(own, load<T>(own) + load<T>(weights + v * n));
      }
      if (t_.tile.scores.invariant) continue;
      V sum = load<T>(weights);
      if (two) sum += load<T>(weights + n);
      store<T>(sums, load<T>(sums) + sum);
    }
  }

  /// map[map_row[i]][cell(j)] += w, cell(j) = j * map_columns / Tk: key by key in lanes, lane by lane where a cell
  /// ends.
  void add_map(const StripRange& r, Index j0, const LiveRange& live) const {
    const int vectors = live_vectors<T>(r.ni);
    const Index kv_len = t_.tile.scores.kv_len, columns = t_.map_columns;
    const Index* map_row = t_.map_row + (r.i0 - t_.tile.q_begin);
    alignas(64) T sums[strip_lanes<T>()];
    for (Index j = live.lo; j < live.hi;) {
      const Index cell = (j0 + j) * columns / kv_len;
      // The first key of the next cell: the smallest j with j * columns >= (cell + 1) * kv_len.
      const Index end = smaller(live.hi, ((cell + 1) * kv_len + columns - 1) / columns - j0);
      V sum[kVectors] = {};
      for (; j < end; ++j) {
        for (int v = 0; v < vectors; ++v) sum[v] += load<T>(w_.scores + j * strip_lanes<T>() + v * n);
      }
      for (int v = 0; v < vectors; ++v) store<T>(sums + v * n, sum[v]);
      for (Index lane = 0; lane < r.ni;) {  // the lanes of one row of the map together, or with invariant bits alone
        const Index row = map_row[lane];
        double total = static_cast<double>(sums[lane++]);
        for (; !t_.tile.scores.invariant && lane < r.ni && map_row[lane] == row; ++lane)
          total += static_cast<double>(sums[lane]);
        t_.map[row * columns + cell] += total;
      }
    }
  }

  void set_rows(const StripRange& r, Index j0, const LiveRange& live) const {
    for (Index lane = 0; lane < r.ni; ++lane) {
      double* row = t_.rows[r.i0 - t_.tile.q_begin + lane];
      if (row == nullptr) continue;
      for (Index j = live.lo; j < live.hi; ++j)
        row[j0 + j] = static_cast<double>(w_.scores[j * strip_lanes<T>() + lane]);
    }
  }

  void keep_largest(const StripRange& r, Index j0, const LiveRange& live) const {
    const Index from = r.i0 - t_.tile.q_begin;
    alignas(64) T thresholds[strip_lanes<T>()];
    for (Index lane = 0; lane < strip_lanes<T>(); ++lane)
      thresholds[lane] = lane < r.ni ? own_.thresholds[from + lane] : kInf<T>;
    const int vectors = live_vectors<T>(r.ni);
    constexpr Index group = 8;  // keys of which mostly none is among the largest
    for (Index first = live.lo; first < live.hi; first += group) {
      const Index end = smaller(first + group, live.hi);
      std::uint32_t any = 0;
      for (int v = 0; v < vectors; ++v) {
        V largest = splat<T>(-kInf<T>);
        for (Index j = first; j < end; ++j)
          largest = max_or_second(load<T>(w_.scores + j * strip_lanes<T>() + v * n), largest);
        any |= bits_where<T>(largest > load<T>(thresholds + v * n));
      }
      for (Index j = first; any != 0 && j < end; ++j) {
        const T* weights = w_.scores + j * strip_lanes<T>();
        std::uint32_t above = 0;
        for (int v = 0; v < vectors; ++v) {
          above |= bits_where<T>(load<T>(weights + v * n) > load<T>(thresholds + v * n)) << (v * n);
        }
        above &= kept_lanes(r, live, j);
        for (; above != 0; above &= above - 1) {
          const int lane = __builtin_ctz(above);
          thresholds[lane] = insert(from + lane, weights[lane], j0 + j);
        }
      }
    }
    for (Index lane = 0; lane < r.ni; ++lane) own_.thresholds[from + lane] = thresholds[lane];
  }

  /// Bounds: the first one must be above, the next one equal.
  T least() const { return t_.positive ? T{0} : -kInf<T>; }
  T insert(Index query, T value, Index key) const {
    double* values = t_.top_values + query * t_.top_k;
    Index* keys = t_.top_keys + query * t_.top_k;
    insert_largest(values, keys, t_.top_k, static_cast<double>(value), key);
    return keys[t_.top_k - 1] < 0 ? least() : static_cast<T>(values[t_.top_k - 1]);
  }

  const CaptureSweep<T>& t_;
  const ForwardScratch<T>& w_;
  const SweepScratch<T>& own_;
  const Index column_lanes_;
};

/// `scratch`: room for a ForwardScratch, then a SweepScratch.
template <class T> void sweep_tile(const CaptureSweep<T>& t, void* scratch) {
  ForwardTile<T> f = t.tile;
  const ScoreParams<T>& s = f.scores;
  const bool copies = copies_rows(f) || (t.dout.data != nullptr && t.dout.type != stored_as<T>());
  const ForwardScratch<T> w(scratch, s.head_dim, f.v_head_dim, f.q_count, copies);
  const SweepScratch<T> own(static_cast<std::byte*>(scratch) + w.bytes, s.head_dim, f.v_head_dim, f.q_count);
  PagedRows<T> rows(f, w);
  const CaptureSweeper<T> sweep(t, w, own);
  const Index strips = (f.q_count + strip_lanes<T>() - 1) / strip_lanes<T>();
  const KeyRange reached = reach(s, f.q_begin, f.q_count, s.key_tile);
  bool wanted[kMostStrips<T>];
  for (Index strip = 0; strip < strips; ++strip) {
    const StripRange r = strip_range(f, strip);
    wanted[strip] = sweep.wants(r);
    if (!wanted[strip]) continue;
    rows.pack_queries(f, w, r);
    if (t.dout.data == nullptr) continue;
    const TypedRows<const T> dout = rows_as<T>(t.dout, r.i0 - f.q_begin, r.ni, f.v_head_dim, w.rows);
    pack_strips(
        dout.data, dout.stride, 0, r.ni, f.v_head_dim, T{1}, w.out_panels + strip * strip_lanes<T>() * f.v_head_dim);
  }
  sweep.start();
  const auto next_chunk = [&](Index j0) { return live_chunk(s, f.q_begin, f.q_count, j0, reached.end); };
  for (Index j0 = next_chunk(reached.begin); j0 < reached.end; j0 = next_chunk(j0 + s.key_tile)) {
    const Index nj = smaller(s.key_tile, s.kv_len - j0);
    rows.read_keys(f, j0, nj);
    if (t.dout.data != nullptr) rows.read_values(f, j0, nj);
    sweep.start_chunk(nj);
    for (Index strip = 0; strip < strips; ++strip) {
      if (wanted[strip]) sweep.strip_chunk(f, rows, strip_range(f, strip), j0, nj);
    }
    sweep.end_chunk(j0, nj);
  }
}

}  // namespace
}  // namespace qkv
