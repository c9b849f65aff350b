// Rows of forward in memory, of any type and order of pages: rows of the type of sums in one piece are read and written
// in place, all others pass through scratch memory, a chunk of keys at a time and once for all strips of a query tile.
// To copy a key costs two passes over its numbers, its products with a tile a hundred times that. Few queries read keys
// where they lie, as they are stored. The arithmetic is the same, so every layout gives the same bits.
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

/// The rows of forward_tile, and its two products: K Q^T and V^T P^T. kLists: few queries read keys where they lie.
template <class T, bool kLists = false> struct PagedRows {
  static constexpr bool kSets = true;  // a strip's first chunk may set out instead of adding to zeros

  TypedRows<const T> k, v;  // of the chunk that is computed, from its first key on; not where its rows are listed

  PagedRows(const ForwardTile<T>& t, const ForwardScratch<T>& scratch)
      : k{nullptr, t.keys.k.row_stride},
        v{nullptr, t.keys.v.row_stride},
        w(scratch),
        listed_(kLists && t.q_count <= kFewLanes<T> && t.scores.kv_len > t.scores.key_tile &&
                t.keys.type != StoredType::kInt4),
        whole_(in_one_piece<T>(t.keys)) {
    if (!whole_ || t.keys.held.end == 0) return;
    first_k_ = key_row<T>(t.keys.k, t.keys.page(0), 0);
    first_v_ = key_row<T>(t.keys.v, t.keys.page(0), 0);
  }

  void pack_queries(const ForwardTile<T>& t, const ForwardScratch<T>&, const StripRange& r) const {
    const ScoreParams<T>& s = t.scores;
    const TypedRows<const T> q = rows_as<T>(t.q, r.i0 - t.q_begin, r.ni, s.head_dim, w.rows);
    pack_strips(
        q.data, q.stride, 0, r.ni, s.head_dim, panel_factor(s), w.q_panels + r.strip * strip_lanes<T>() * s.head_dim);
  }
  void read_keys(const ForwardTile<T>& t, Index j0, Index nj) {
    if constexpr (kLists) {
      if (listed_) return list_chunk(t, j0, nj);
    }
    k = whole_ ? TypedRows<const T>{first_k_ + (j0 - t.keys.origin) * k.stride, k.stride}
               : keys_as<T>(t.keys, t.keys.k, j0, nj, t.scores.head_dim, w.k);
  }
  void read_values(const ForwardTile<T>& t, Index j0, Index nj) {
    if (!listed_) copy_values(t, j0, nj);
  }
  /// V where the mask hides keys, whose rows may not exist, or hold NaN or infinity.
  void read_hidden_values(const ForwardTile<T>& t, Index j0, Index nj) {
    if (listed_) copy_values(t, j0, nj);
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
          .ahead = t.ahead};
      if constexpr (kLists) {
        if (listed_) {
          return for_listed_type<T>(t.keys.type, [&](auto stored) {
            using S = decltype(stored);
            with_rows_from<S>(
                t, range.lo, [&](const auto& rows) { few_lanes_of_rows<S>(rows, p, range.hi - range.lo, r.ni); });
          });
        }
      }
      if (r.ni <= kLanesAtOnce<T>) {
        few_lanes_of_rows<T>(EvenRows<T>{p.a, p.a_row}, p, range.hi - range.lo, r.ni);
      } else {
        product_vectors<T, Store::kSet>(p, range.hi - range.lo, range.first, range.count);
      }
    });
  }
  void set_values(const ForwardTile<T>& t, const StripRange& r, const LiveRange& live, const VectorRange& range,
      const T* p, T* out) const {
    multiply<Store::kSet>(t, r, live, range, p, out);
  }
  void add_values(const ForwardTile<T>& t, const StripRange& r, const LiveRange& live, const VectorRange& range, Index,
      const T* p, T* out) const {
    multiply<Store::kAdd>(t, r, live, range, p, out);
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
  bool listed_, whole_;  // K and V are read where they lie: few queries, or rows one after the other in one piece
  const T *first_k_ = nullptr, *first_v_ = nullptr;  // then: their first rows
  // Of a chunk in the order in which they are read: K, V, and the next keys. Scales of integers.
  const void* listed_rows_[kLists ? 2 * kMostKeys + kKeysAhead : 1];
  float scales_[kLists ? 2 * kMostKeys : 1];
  Index first_value_ = 0;  // the place of V

  void copy_values(const ForwardTile<T>& t, Index j0, Index nj) {
    v = whole_ ? TypedRows<const T>{first_v_ + (j0 - t.keys.origin) * t.keys.v.row_stride, t.keys.v.row_stride}
               : keys_as<T>(t.keys, t.keys.v, j0, nj, t.v_head_dim, w.v);
  }
  [[gnu::noinline]] void list_chunk(const ForwardTile<T>& t, Index j0, Index nj) {
    const Index size = stored_bytes(t.keys.type);
    const auto list = [&](const KeyMatrix& matrix, Index begin, Index count, Index place) {
      for (Index j = 0; j < count; ++j) listed_rows_[place + j] = matrix.rows;  // of keys that do not exist, any
      for_key_runs(t.keys, begin, begin + count, [&](Index at, Index page, Index row, Index some) {
        const Index first = page * matrix.page_stride + row * matrix.row_stride;
        for (Index j = 0; j < some; ++j) {
          listed_rows_[place + at + j] =
              static_cast<const std::byte*>(matrix.rows) + (first + j * matrix.row_stride) * size;
        }
        if (t.keys.type != StoredType::kInt8 || place == 2 * nj) return;
        for (Index j = 0; j < some; ++j) scales_[place + at + j] = key_scales(matrix, page, row)[j];
      });
    };
    list(t.keys.k, j0, nj, 0);
    list(t.keys.v, j0, nj, nj);
    list(t.keys.k, j0 + nj, kKeysAhead, 2 * nj);
    first_value_ = nj;
  }
  template <class S, class Body> void with_rows_from(const ForwardTile<T>& t, Index place, const Body& body) const {
    const bool into_l2 = t.keys.into_l2;
    with_fetch<S, kShared>(into_l2, [&](auto to) {
      body(RowList<S, to>{listed_rows_ + place, listed_rows_ + place + kKeysAhead, scales_ + place, into_l2});
    });
  }
  /// out[d, lane] (op) sum_j v[j, d] * p[j, lane]
  template <Store kStore> [[gnu::noinline]] void multiply(const ForwardTile<T>& t, const StripRange& r,
      const LiveRange& live, const VectorRange& range, const T* p, T* out) const {
    constexpr bool sets = kStore == Store::kSet;
    const Product<T> values{.a = v.data + range.lo * v.stride,
        .a_row = 1,
        .a_depth = v.stride,
        .b = p + range.lo * strip_lanes<T>(),
        .b_row = strip_lanes<T>(),
        .c = out,
        .c_row = strip_lanes<T>(),
        .depth = range.hi - range.lo,
        .ahead = t.ahead};
    if constexpr (kLists) {
      if (listed_ && !live.masked) {
        return for_listed_type<T>(t.keys.type, [&](auto stored) {
          using S = decltype(stored);
          with_rows_from<S>(t, first_value_ + range.lo,
              [&](const auto& rows) { few_lanes_of_columns<S>(rows, values, t.v_head_dim, r.ni, sets); });
        });
      }
    }
    if (r.ni <= kFewLanes<T>) {
      few_lanes_of_columns<T>(EvenRows<T>{values.a, v.stride}, values, t.v_head_dim, r.ni, sets);
    } else {
      product_vectors<T, kStore>(values, t.v_head_dim, range.first, range.count);
    }
  }
};

}  // namespace
}  // namespace qkv
