// Forward linear attention over a segment: chunk by chunk the state before it, the square within it, what it adds to
// the state. Hua 2022 (2202.10447), section 3.2 and Sun 2023 (2307.08621), section 2.2: the chunked form.
#pragma once

#include "kernels/linear_attention/delta.h"

namespace qkv {
namespace {

/// The values that a chunk adds to the state: v, or u of the delta rule.
template <class T> struct ChunkValues {
  const T* rows;
  Index stride;
};

template <class T> [[gnu::noinline]] ChunkValues<T> chunk_values(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, const T* state, Index begin, Index count) {
  if (t.beta.data == nullptr) return {t.v.at(0, begin), t.v.stride};
  solve_delta(t, w, state, begin, count);
  return {w.u, t.v_head_dim};
}

/// row[i] = n[i] = z.phi(q[i]) + sum_j scores[j, i]; q_panel is decayed already. Without scores count is 0.
template <class T>
[[gnu::noinline]] void normalizers(const LinearAttentionScratch<T>& w, const T* z, Index features, Index count) {
  constexpr int n = Simd<T>::kLanes;
  rows_times<Store::kSet>(z, 0, features, w.q_panel, w.width, w.row, 0, 1, w.width);
  for (Index i = 0; i < w.width; i += n) {
    typename Simd<T>::V sum{};
    for (Index j = 0; j < smaller(count, i + n); ++j) sum += load<T>(w.scores + j * w.width + i);
    store<T>(w.row + i, load<T>(w.row + i) + sum);
  }
}

/// 1 / n would be infinite, and n itself has lost its digits; NaN does not vanish.
template <class T> inline bool vanishes(T n) {
  constexpr T smallest = std::numeric_limits<T>::min();
  return n < smallest && n > -smallest;
}

template <class T> [[gnu::noinline]] void normalize_out(const LinearAttentionSegment<T>& t,
    const LinearAttentionScratch<T>& w, Index head, Index begin, Index count, T* out) {
  for (Index i = 0; i < count; ++i) {
    T* row = out + i * t.out.stride;
    if (vanishes(w.row[i])) {
      for (Index e = 0; e < t.v_head_dim; ++e) row[e] = 0;
    } else {
      scale_row(row, t.v_head_dim, T{1} / w.row[i]);
    }
    if (t.normalizer.data != nullptr) {
      *t.normalizer.at(head, begin + i) = w.row[i];
    }
  }
}

/// phi(q) of one head's tokens as rows qf and as q_panel.
template <class T> [[gnu::noinline]] void load_queries(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index head, Index begin, Index count) {
  const LinearAttentionFeatures<T>& f = t.features;
  query_features(t, w, head, begin, count);
  pack_transposed<T>(w.qf, f.count, count, f.count, T{1}, w.q_panel, w.width);
}

/// q_panel[:, i] *= into[i]: queries as they meet the state before the chunk.
template <class T> [[gnu::noinline]] void decay_panel(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, Index count) {
  if (t.log_decay.data == nullptr) return;
  constexpr int n = Simd<T>::kLanes;
  for (Index i = 0; i < count; i += n) {
    const auto factor = load<T>(w.into + i);
    for (Index d = 0; d < t.features.count; ++d) {
      T* target = w.q_panel + d * w.width + i;
      store<T>(target, load<T>(target) * factor);
    }
  }
}

/// out[i, :] = sum_d q_panel[d, i] * state[d, :]
template <class T> [[gnu::noinline]] void out_of_state(
    const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w, const T* state, Index count, T* out) {
  multiply<Store::kSet, T>({w.q_panel, 1, w.width}, {state, t.v_head_dim}, {out, t.out.stride}, t.features.count, count,
      t.v_head_dim, &w.ahead);
}

/// One head's outputs of a causal chunk; `state` is that before it.
template <class T> inline void chunk_out(const LinearAttentionSegment<T>& t, const LinearAttentionScratch<T>& w,
    const T* state, const ChunkValues<T>& values, bool finite, Index head, Index begin, Index count) {
  const Index F = t.features.count, Dv = t.v_head_dim;
  T* out = t.out.at(head, begin);
  if (t.channels) {
    query_features(t, w, head, begin, count);
    pair_scores(w, w.qf, true, T{1}, count, w.scores);
    multiply_rows(w.qf, w.intos, count * F, w.qf);
    rows_times<Store::kSet>(w.qf, F, F, state, Dv, out, t.out.stride, count, Dv, &w.ahead);
  } else {
    load_queries(t, w, head, begin, count);
    triangle_scores(w.kf, F, w.q_panel, w.width, F, count, w.scores);
    mask_triangle<Triangle::kWithDiagonal>(t, w, count, w.scores);
    decay_panel(t, w, count);
    out_of_state(t, w, state, count, out);
  }
  add_earlier(w.scores, w.width, count, values.rows, values.stride, out, t.out.stride, Dv, triangle_step<T>(finite));
  if (!t.normalized) return;
  normalizers(w, state + F * Dv, F, count);
  normalize_out(t, w, head, begin, count, out);
}

/// A decay per channel: state = that after the chunk.
template <class T> [[gnu::noinline]] void next_state(
    const LinearAttentionScratch<T>& w, const ChunkValues<T>& values, Index count, T* state) {
  decay_state(w, count, state);
  multiply_rows(w.kf, w.afters, count * w.F, w.decayed);
  add_outer(w.decayed, w.F, w.F, values.rows, values.stride, count, state, w.Dv, &w.ahead);
}

/// Before the first chunk: local = 0, with a decay per channel the state before the segment.
template <class T> inline void begin_state(const LinearAttentionSegment<T>& t, const T* base, T* state) {
  if (t.channels) return set_row(T{1}, base, state, t.features.count * t.v_head_dim);
  for (Index e = 0; e < state_count(t); ++e) state[e] = 0;
}

template <class T> void linear_attention_forward(const LinearAttentionSegment<T>& t, void* scratch) {
  const LinearAttentionScratch<T> w(scratch, sizes_of(t));
  const Index states = state_count(t);
  begin_state(t, t.base, t.local);
  ExactSum<T> log_left;
  for (Index begin = t.begin; begin < t.end; begin += t.chunk) {
    const Index count = smaller(t.chunk, t.end - begin);
    fetch_rows(w, t.q.data == nullptr ? 1 : 2, begin + count, smaller(t.chunk, t.end - begin - count),
        {{t.k.data, t.k.stride, t.features.head_dim}, {t.v.data, t.v.stride, t.v_head_dim},
            {t.channels ? t.log_decay.data : nullptr, t.log_decay.stride, t.features.count},
            {t.q.data, t.q.stride, t.features.head_dim},
            {t.q.data == nullptr ? nullptr : t.out.data, t.out.stride, t.v_head_dim}});
    const ExactSum<T> log_whole = chunk_decays(t, w, begin, count);
    key_features(t, w, begin, count);
    const T decay = chunk_decay(t, w, count);
    const T* const state = t.channels ? t.local : w.state;
    if (!t.channels && (t.q.data != nullptr || t.beta.data != nullptr)) {
      join_state(t.base, t.local, exp_of_one(log_left), decay, states, w.state);
    } else if (!t.channels && t.log_decay.data != nullptr) {
      scale_row(t.local, states, decay);
    }
    const ChunkValues<T> values = chunk_values(t, w, state, begin, count);
    if (t.q.data != nullptr) {
      const bool finite = rows_finite(values.rows, values.stride, count, t.v_head_dim);
      for (Index head = 0; head < t.group_size; ++head) chunk_out(t, w, state, values, finite, head, begin, count);
    }
    t.channels ? next_state(w, values, count, t.local) : add_keys(t, w, values.rows, values.stride, count);
    log_left.add(log_whole);
  }
  if (!t.channels) t.local[states] = exp_of_one(log_left);
}

/// Not causal: every query reads the one state.
template <class T> void linear_attention_read_state(const LinearAttentionSegment<T>& t, void* scratch) {
  const LinearAttentionScratch<T> w(scratch, sizes_of(t));
  const Index F = t.features.count;
  for (Index begin = t.begin; begin < t.end; begin += t.chunk) {
    const Index count = smaller(t.chunk, t.end - begin);
    for (Index head = 0; head < t.group_size; ++head) {
      T* out = t.out.at(head, begin);
      load_queries(t, w, head, begin, count);
      out_of_state(t, w, t.base, count, out);
      if (!t.normalized) continue;
      normalizers(w, t.base + F * t.v_head_dim, F, 0);
      normalize_out(t, w, head, begin, count, out);
    }
  }
}

}  // namespace
}  // namespace qkv
