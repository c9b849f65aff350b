// Linear attention within one chunk, forward and backward: decay factors, the square of scores, sums over
// earlier and later tokens, the state. Tiles are kept transposed, [key][query], queries in lanes. Triangles are
// multiplied in blocks of rows that extend past the diagonal into zeros; where a chunk holds NaN or infinity, row by
// row, so that 0 * NaN does not reach an earlier token.
#pragma once

#include <initializer_list>

#include "kernels/carver.h"
#include "kernels/linear_attention/features.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

/// Chunks of a segment. Backward keeps the state before each of them: at most 1 MiB of L2, unless one state is larger.
template <class T> Index linear_attention_segment_chunks(Index features, Index v_head_dim) {
  const Index bytes = features * (v_head_dim + 1) * static_cast<Index>(sizeof(T));
  return larger<Index>(1, smaller<Index>(32, (Index{1} << 20) / bytes));
}

/// Rows [T, width] of a tensor, or null.
template <class T> struct LinearRows {
  const T* first;
  Index stride, width;
};

/// Scratch of a chunk. `width`: queries of a tile, up to whole vectors.
template <class T> struct LinearAttentionScratch {
  Carver carver;
  LinearAttentionSizes s;
  Index F = s.features, Dv = s.v_head_dim, width = round_up(s.chunk, Simd<T>::kLanes);
  T* kf = carver.array<T>(s.chunk * F);          // [chunk][F]: phi(k)
  T* qf = carver.array<T>(s.chunk * F);          // [chunk][F]: phi(q)
  T* q_panel = carver.array<T>(F * width);       // [F][width]: phi(q) transposed; phi(k) where the delta rule is solved
  T* scores = carver.array<T>(s.chunk * width);  // [chunk][width]
  T* state = carver.array<T>(F * (Dv + 1));      // before the chunk: S [F][Dv], z [F]
  T* lane = carver.array<T>(width);              // [width]: 0, 1, 2, ...
  T* gate = carver.array<T>(width);              // [width]: exp(log_decay) of each token
  T* into = carver.array<T>(width);              // [width]: decay from the chunk's start to after each token
  T* after = carver.array<T>(width);             // [width]: decay from after each token to the chunk's end
  T* gamma = carver.array<T>(width);             // [width]: one row of decays between tokens
  T* row = carver.array<T>(width);               // [width]: a scratch row
  // The delta rule: [chunk][width] negated products of keys; [chunk][Dv] u; [chunk][Dv] u / beta.
  T* keys = carver.array<T>(s.delta ? s.chunk * width : 0);
  T* u = carver.array<T>(s.delta ? s.chunk * Dv : 0);
  T* residual = carver.array<T>(s.delta ? s.chunk * Dv : 0);
  // A decay per channel: [chunk][F] each token's decay, that from the chunk's start to after it, that from after it to
  // the chunk's end, and rows times one of these.
  Index channel_count = s.channels ? s.chunk * F : 0;
  T* gates = carver.array<T>(channel_count);
  T* intos = carver.array<T>(channel_count);
  T* afters = carver.array<T>(channel_count);
  T* decayed = carver.array<T>(channel_count);
  std::size_t bytes = carver.used();
  mutable Ahead ahead{};  // rows of the next chunk, fetched between blocks of the products with the state

  LinearAttentionScratch(void* base, const LinearAttentionSizes& sizes) : carver(base), s(sizes) {
    if (base == nullptr) return;
    for (Index i = 0; i < width; ++i) lane[i] = static_cast<T>(i);
  }
};

/// Begins to fetch `count` rows from `begin` on of each tensor: rows lie pages apart in [B, T, H, D] memory, where the
/// hardware does not fetch ahead. `products`: how many products with the state are passed `ahead` meanwhile.
template <class T> inline void fetch_rows(const LinearAttentionScratch<T>& w, Index products, Index begin, Index count,
    std::initializer_list<LinearRows<T>> tensors) {
  w.ahead = {};
  if (count <= 0) return;
  for (const LinearRows<T>& rows : tensors) {
    if (rows.first != nullptr) add_rows(w.ahead, rows.first + begin * rows.stride, rows.stride, rows.width, count);
  }
  begin_ahead(&w.ahead, products * (w.s.chunk / kRows) * (1 + (w.Dv - 1) / strip_lanes<T>()));
}

template <class T> LinearAttentionSizes sizes_of(const LinearAttentionSegment<T>& t) {
  return {t.features.head_dim, t.features.count, t.v_head_dim, t.chunk, t.beta.data != nullptr, t.channels,
      t.features.invariant};
}
template <class T> Index state_count(const LinearAttentionSegment<T>& t) {
  return t.features.count * (t.v_head_dim + 1);
}

/// phi of one head's queries and of the keys of a chunk.
template <class T> inline void query_features(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index head, Index begin, Index count) {
  feature_rows(t.features, t.q.at(head, begin), t.q.stride, count, t.features.query_scale, w.qf);
}
template <class T> inline void key_features(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count) {
  feature_rows(t.features, t.k.at(0, begin), t.k.stride, count, T{1}, w.kf);
}

/// x[:] = e^(x[:] + low[:]), in whole vectors.
template <class T> inline void exp_of_sums(T* x, const T* low, Index width) {
  constexpr int n = Simd<T>::kLanes;
  for (Index i = 0; i < width; i += n) store<T>(x + i, exp_of_sum<T>(load<T>(x + i), load<T>(low + i)));
}

/// Fills gates, intos and afters for tokens [begin, begin + count) (channels.h).
template <class T>
void channel_decays(const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count);

/// Fills gate, into and after for tokens [begin, begin + count). Returns the sum of log_decay; 0 without decay. Sums
/// are compensated: a rounded sum of -40 would change its exponential by 40 eps. With channels: channel_decays, and 0.
template <class T> inline ExactSum<T> chunk_decays(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index begin, Index count) {
  if (t.channels) channel_decays(t, w, begin, count);
  if (t.channels || t.log_decay.data == nullptr) return {};
  constexpr int n = Simd<T>::kLanes;
  const T* log_decay = t.log_decay.at(0, begin);
  ExactSum<T> sum, later;
  for (Index i = 0; i < w.width; ++i) {
    w.gate[i] = i < count ? log_decay[i * t.log_decay.stride] : T{0};
    sum.add(w.gate[i]);
    w.into[i] = sum.high;
    w.row[i] = sum.low;
  }
  exp_of_sums(w.into, w.row, w.width);
  for (Index i = w.width - 1; i >= 0; --i) {
    w.after[i] = later.high;
    w.row[i] = later.low;
    later.add(w.gate[i]);
  }
  exp_of_sums(w.after, w.row, w.width);
  for (Index i = 0; i < w.width; i += n)
    store<T>(w.gate + i, exp_of_sum<T>(load<T>(w.gate + i), typename Simd<T>::V{}));
  return sum;
}

template <class T> inline T exp_of_one(const ExactSum<T>& x) {
  T lane[Simd<T>::kLanes];
  store<T>(lane, exp_of_sum<T>(splat<T>(x.high), splat<T>(x.low)));
  return lane[0];
}

/// rows[r, :] *= factor[r], with decay only.
template <class T> inline void decay_rows(
    const LinearAttentionSegment<T>& t, const T* factor, T* rows, Index stride, Index count, Index width) {
  if (t.log_decay.data == nullptr) return;
  for (Index r = 0; r < count; ++r) scale_row(rows + r * stride, width, factor[r]);
}

/// state = left * base + local, then local *= decay: one pass over both.
template <class T> [[gnu::noinline]] void join_state(const T* base, T* local, T left, T decay, Index count, T* state) {
  for_vectors<T>(count, [&](Index e, int lanes) {
    const auto own = load_lanes(local + e, lanes);
    store_lanes(state + e, fma(splat<T>(left), load_lanes(base + e, lanes), own), lanes);
    store_lanes(local + e, own * decay, lanes);
  });
}
/// The decay over a chunk, after chunk_decays().
template <class T>
inline T chunk_decay(const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index count) {
  return t.channels || t.log_decay.data == nullptr ? T{1} : w.into[count - 1];
}

/// tile[j, i] = sum_d a[j, d] * panel[d, i] where i >= j, in whole vectors.
template <class T> inline void triangle_scores(
    const T* a, Index a_stride, const T* panel, Index width, Index depth, Index count, T* tile) {
  for (Index i0 = 0; i0 < width; i0 += strip_lanes<T>()) {
    const Index columns = smaller<Index>(strip_lanes<T>(), width - i0);
    multiply<Store::kSet, T>(
        {a, a_stride, 1}, {panel + i0, width}, {tile + i0, width}, depth, smaller(count, i0 + columns), columns);
  }
}

enum class Triangle {
  kWithDiagonal,  // x * decay where i >= j
  kNegated        // -x * decay where i > j
};

/// Applies the triangle kTriangle, with the decay from j to i, to tile[j, i]; 0 elsewhere. Calls visit(j, i, x, y) with
/// each vector before and after.
template <Triangle kTriangle, class T, class Visit> inline void mask_triangle(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index count, T* tile, const Visit& visit) {
  using V = typename Simd<T>::V;
  constexpr int n = Simd<T>::kLanes;
  for (Index i = 0; i < w.width; i += n) store<T>(w.gamma + i, splat<T>(1));
  for (Index j = count - 1; j >= 0; --j) {
    const V at = splat<T>(w.lane[j]);
    const V gate = splat<T>(t.log_decay.data == nullptr || j + 1 == count ? T{1} : w.gate[j + 1]);
    // A block of rows that ends at j reads from its first row's lane on.
    for (Index i = larger<Index>(0, j - kRows + 1) / n * n; i < w.width; i += n) {
      const V lane = load<T>(w.lane + i), old = load<T>(w.gamma + i);
      const V gamma = lane > at ? old * gate : splat<T>(1);
      store<T>(w.gamma + i, gamma);
      T* target = tile + j * w.width + i;
      const V x = load<T>(target);
      V y;
      if constexpr (kTriangle == Triangle::kWithDiagonal) {
        y = lane >= at ? x * gamma : V{};
      } else {
        y = lane > at ? -x * gamma : V{};
      }
      store<T>(target, y);
      visit(j, i, x, y);
    }
  }
}
template <Triangle kTriangle, class T> inline void mask_triangle(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index count, T* tile) {
  mask_triangle<kTriangle>(t, w, count, tile, [](Index, Index, auto, auto) {});
}

/// Rows of a triangle that are multiplied together: one where something is not finite.
template <class T> inline Index triangle_step(bool finite) { return finite ? kRows : 1; }

template <class T> inline bool rows_finite(const T* rows, Index stride, Index count, Index width) {
  using V = typename Simd<T>::V;
  V mark[4] = {};  // independent chains
  for (Index r = 0; r < count; r += 4) {
    const Index live = smaller<Index>(4, count - r);
    for_vectors<T>(width, [&](Index e, int lanes) {
#pragma GCC unroll 4
      for (Index c = 0; c < 4; ++c) {
        if (c < live) mark[c] = fma(load_lanes(rows + (r + c) * stride + e, lanes), V{}, mark[c]);
      }
    });
  }
  const V sum = (mark[0] + mark[1]) + (mark[2] + mark[3]);
  return bits_where<T>(sum != sum) == 0;
}

/// c[i, :] += sum over j <= i of tile[j, i] * b[j, :]
template <class T> [[gnu::noinline]] void add_earlier(
    const T* tile, Index width, Index count, const T* b, Index b_row, T* c, Index c_row, Index columns, Index step) {
  for (Index i = 0; i < count; i += step) {
    const Index rows = smaller(step, count - i);
    multiply<Store::kAdd, T>({tile + i, 1, width}, {b, b_row}, {c + i * c_row, c_row}, i + rows, rows, columns);
  }
}

/// c[j, :] += sum over i >= j of tile[j, i] * b[i, :]
template <class T> inline void add_later(
    const T* tile, Index width, Index count, const T* b, Index b_row, T* c, Index c_row, Index columns, Index step) {
  for (Index j = 0; j < count; j += step) {
    multiply<Store::kAdd, T>({tile + j * width + j, width, 1}, {b + j * b_row, b_row}, {c + j * c_row, c_row},
        count - j, smaller(step, count - j), columns);
  }
}

/// c[r, :] (op) sum_d a[r, d] * b[d, :]
template <Store kStore, class T> [[gnu::noinline]] void rows_times(const T* a, Index a_row, Index depth, const T* b,
    Index b_row, T* c, Index c_row, Index rows, Index columns, Ahead* ahead = nullptr) {
  multiply<kStore, T>({a, a_row, 1}, {b, b_row}, {c, c_row}, depth, rows, columns, ahead);
}

/// to[d, :] += sum_r x[r, d] * y[r, :], a sum of outer products of rows: what keys and values add to a state.
template <class T> [[gnu::noinline]] void add_outer(const T* x, Index x_row, Index width, const T* y, Index y_row,
    Index count, T* to, Index columns, Ahead* ahead = nullptr) {
  multiply<Store::kAdd, T>({x, 1, x_row}, {y, y_row}, {to, columns}, count, width, columns, ahead);
}

/// to[:] += sum_r factor[r * stride] * rows[r, :]; a stride of 0 repeats.
template <class T> [[gnu::noinline]] void add_weighted_rows(
    const T* factor, Index stride, const T* rows, Index row_stride, Index count, T* to, Index width) {
  multiply<Store::kAdd, T>({factor, 0, stride}, {rows, row_stride}, {to, 0}, count, 1, width);
}

/// Adds keys and values of a chunk to the segment's local state, which is decayed already. kf is decayed in place.
template <class T> inline void add_keys(const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w,
    const T* values, Index value_stride, Index count) {
  constexpr T one = 1;
  const Index F = t.features.count, Dv = t.v_head_dim;
  decay_rows(t, w.after, w.kf, F, count, F);
  add_outer(w.kf, F, F, values, value_stride, count, t.local, Dv, &w.ahead);
  if (t.normalized) add_weighted_rows(&one, 0, w.kf, F, count, t.local + F * Dv, F);
}

}  // namespace
}  // namespace qkv
