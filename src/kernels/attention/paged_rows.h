// Rows of forward in memory, of any type and order of pages: rows of the type of sums in one piece are read and written
// in place, all others pass through scratch memory, a chunk of keys at a time and once for all strips of a query tile.
// The arithmetic is the same, so every layout gives the same bits. To copy a key costs two passes over its numbers, its
// products with a tile a hundred times that.
#pragma once

#include "kernels/attention/strips.h"
#include "kernels/cache/rows.h"
#include "kernels/products/few_lanes.h"

namespace qkv {
namespace {

/// Whether a tile needs room for rows that cannot be read or written in place.
template <class T> inline bool copies_rows(const ForwardTile<T>& t) {
  return t.q.type != stored_as<T>() || (t.out.data != nullptr && t.out.type != stored_as<T>()) ||
         !in_one_piece<T>(t.keys);
}

/// The rows of forward_tile, and its two products: K Q^T and V^T P^T.
template <class T> struct PagedRows {
  static constexpr bool kSets = true;  // a strip's first chunk may set out instead of adding to zeros

  TypedRows<const T> k, v;  // of the chunk that is computed, from its first key on

  PagedRows(const ForwardTile<T>& t, const ForwardScratch<T>& scratch)
      : k{nullptr, t.keys.k.row_stride}, v{nullptr, t.keys.v.row_stride}, w(scratch), whole(in_one_piece<T>(t.keys)) {
    if (!whole || t.keys.held.end == 0) return;
    first_k = key_row<T>(t.keys.k, t.keys.page(0), 0);
    first_v = key_row<T>(t.keys.v, t.keys.page(0), 0);
  }

  void pack_queries(const ForwardTile<T>& t, const ForwardScratch<T>&, const StripRange& r) const {
    const ScoreParams<T>& s = t.scores;
    const TypedRows<const T> q = rows_as<T>(t.q, r.i0 - t.q_begin, r.ni, s.head_dim, w.rows);
    pack_strips(
        q.data, q.stride, 0, r.ni, s.head_dim, panel_factor(s), w.q_panels + r.strip * strip_lanes<T>() * s.head_dim);
  }
  void read_keys(ForwardTile<T>& t, Index j0, Index nj) {
    if (whole) {
      k.data = first_k + (j0 - t.keys.origin) * k.stride;
      return;
    }
    k = keys_as<T>(t.keys, t.keys.k, j0, nj, t.scores.head_dim, w.k);
    if (waits_for_keys(t)) fetch_chunk(t, j0 + nj);
  }
  void read_values(const ForwardTile<T>& t, Index j0, Index nj) {
    v = whole ? TypedRows<const T>{first_v + (j0 - t.keys.origin) * v.stride, v.stride}
              : keys_as<T>(t.keys, t.keys.v, j0, nj, t.v_head_dim, w.v);
  }

  ScoreTile score(const ForwardTile<T>& t, const ForwardScratch<T>& panels, const StripRange& r, Index j0, Index nj,
      T* scores) const {
    const ScoreParams<T>& s = t.scores;
    return score_tile(s, r.i0, r.ni, j0, nj, scores, panels.bias, panels.lane_mask, [&](const VectorRange& range) {
      // scores[j, lane] = sum_d k[j, d] * panel[d, lane]
      const Product<T> p{.a = k.data + range.lo * k.stride,
          .a_row = k.stride,
          .a_depth = 1,
          .b = panels.q_panels + r.strip * strip_lanes<T>() * s.head_dim,
          .b_row = strip_lanes<T>(),
          .c = scores + range.lo * strip_lanes<T>(),
          .c_row = strip_lanes<T>(),
          .depth = s.head_dim,
          .ahead = t.ahead,
          .a_later = later_rows(t, k.stride)};
      if (r.ni <= kFewLanes<T>) {
        few_lanes_of_rows(p, range.hi - range.lo);
      } else {
        product_vectors<T, Store::kSet>(p, range.hi - range.lo, range.first, range.count);
      }
    });
  }
  void set_values(const ForwardTile<T>& t, const StripRange& r, const VectorRange& range, const T* p, T* out) const {
    multiply<Store::kSet>(t, r, range, p, out);
  }
  void add_values(
      const ForwardTile<T>& t, const StripRange& r, const VectorRange& range, Index, const T* p, T* out) const {
    multiply<Store::kAdd>(t, r, range, p, out);
  }
  void add_kept_values(
      const ForwardTile<T>& t, const ForwardScratch<T>& panels, const VectorRange& range, const T* p, T* out) const {
    add_kept_lanes(range, v.data, v.stride, t.v_head_dim, p, panels.lane_mask, out);
  }

  /// Where the rows of a strip's result are written before end_out.
  TypedRows<T> out(const ForwardTile<T>& t, const ForwardScratch<T>&, const StripRange& r) const {
    if (t.out.data == nullptr) return {nullptr, 0};
    if (t.out.type != stored_as<T>()) return {w.rows, t.v_head_dim};
    return {reinterpret_cast<T*>(t.out.data) + (r.i0 - t.q_begin) * t.out.stride, t.out.stride};
  }
  void end_out(const ForwardTile<T>& t, const ForwardScratch<T>&, const StripRange& r) const {
    if (t.out.type == stored_as<T>()) return;
    if constexpr (std::is_same_v<T, float>) {
      const auto narrow = [&](auto stored) {
        auto* const rows = reinterpret_cast<decltype(stored)*>(t.out.data) + (r.i0 - t.q_begin) * t.out.stride;
        narrow_rows(w.rows, r.ni, t.v_head_dim, rows, t.out.stride);
      };
      t.out.type == StoredType::kBF16 ? narrow(BFloat16{}) : narrow(Float16{});
    }
  }

 protected:
  const ForwardScratch<T>& w;

 private:
  bool whole;                                      // K and V are read where they lie, one chunk after the other
  const T *first_k = nullptr, *first_v = nullptr;  // then: their first rows
  Ahead ahead;                                     // rows of the next chunk

  /// Few queries wait for K and V.
  static bool waits_for_keys(const ForwardTile<T>& t) { return 2 * t.q_count <= Simd<T>::kLanes; }
  /// How far it is to the next chunk's rows, which are fetched meanwhile; 0: not to be fetched.
  Index later_rows(const ForwardTile<T>& t, Index stride) const {
    return whole && waits_for_keys(t) ? t.scores.key_tile * stride : 0;
  }
  /// Rows of K and V of the chunk that begins there, over the products of this one.
  [[gnu::noinline]] void fetch_chunk(ForwardTile<T>& t, Index begin) {
    const ScoreParams<T>& s = t.scores;
    t.ahead = &ahead;
    ahead = {};
    const Index size = bytes_of(t.keys.type);
    for_key_runs(t.keys, begin, smaller(begin + s.key_tile, s.kv_len), [&](Index, Index page, Index row, Index count) {
      const auto add = [&](const KeyMatrix& m, Index width) {
        if (ahead.used == Ahead::kTensors) return;
        const auto* const first =
            static_cast<const std::byte*>(m.rows) + (page * m.page_stride + row * m.row_stride) * size;
        add_bytes(ahead, first, m.row_stride * size, width * size, count);
      };
      add(t.keys.k, s.head_dim);
      if (t.out.data != nullptr) add(t.keys.v, t.v_head_dim);
    });
    constexpr Index n = Simd<T>::kLanes;
    begin_ahead(&ahead, (s.key_tile + n - 1) / n + (t.v_head_dim + 2 * n - 1) / (2 * n));
  }
  /// out[d, lane] (op) sum_j v[j, d] * p[j, lane]
  template <Store kStore> [[gnu::noinline]] void multiply(
      const ForwardTile<T>& t, const StripRange& r, const VectorRange& range, const T* p, T* out) const {
    const Product<T> values{.a = v.data + range.lo * v.stride,
        .a_row = 1,
        .a_depth = v.stride,
        .b = p + range.lo * strip_lanes<T>(),
        .b_row = strip_lanes<T>(),
        .c = out,
        .c_row = strip_lanes<T>(),
        .depth = range.hi - range.lo,
        .ahead = t.ahead,
        .a_later = later_rows(t, v.stride)};
    if (2 * r.ni <= Simd<T>::kLanes) {
      few_lanes_of_columns(values, t.v_head_dim, r.ni, kStore == Store::kSet);
    } else {
      product_vectors<T, kStore>(values, t.v_head_dim, range.first, range.count);
    }
  }
};

}  // namespace
}  // namespace qkv
