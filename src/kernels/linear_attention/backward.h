// Backward linear attention over a segment, chunks from last to first: the states before them are computed again and
// kept, the gradient of the state arrives from later tokens. With g = dout / n and dn[i] = -(g[i].out[i]) where
// normalised, otherwise g = dout and dn = 0:
//   dP[j,i] = g[i].u[j] + dn[i]              gradient of the score (tile [key][query])
//   du[j]   = sum_i P[j,i] g[i]     + after[j] dS^T kf[j]
//   dkf[j]  = sum_i dP[j,i] qf[i]   + after[j] (dS u[j] + dz)
//   dqf[i]  = sum_j dP[j,i] kf[j]   + into[i] (S g[i] + dn[i] z)
//   dS'     = decay dS + sum_i into[i] qf[i] g[i]^T       S before, dS after the chunk; likewise dz
#pragma once

#include "kernels/linear_attention/forward.h"

namespace qkv {
namespace {

template <class T> struct LinearAttentionBackwardScratch {
  LinearAttentionScratch<T> shared;
  Carver carver;
  Index F = shared.F, Dv = shared.Dv, chunk = shared.s.chunk, width = shared.width, count = F * (Dv + 1);
  Index chunks = linear_attention_segment_chunks<T>(F, Dv);               // of a segment
  T* states = carver.array<T>(count * chunks);                            // [chunks][state]
  Index solved_count = shared.s.delta ? chunk * (width + 2 * Dv) : 0;     // keys, u, residual (delta.h) of a chunk
  T* solved = carver.array<T>(solved_count * chunks);                     // [chunks][solved_count]
  T* state_turned = carver.array<T>(Dv * round_up(F, Simd<T>::kLanes));   // S as [Dv][F]
  T* dstate_turned = carver.array<T>(Dv * round_up(F, Simd<T>::kLanes));  // dS as [Dv][F]
  T* dstate = carver.array<T>(count);                                     // after the chunk: dS [F][Dv], dz [F]
  T* g = carver.array<T>(chunk * Dv);                                     // [chunk][Dv]
  T* dn = carver.array<T>(width);                                         // [width]
  T* g_panel = carver.array<T>(Dv * width);                               // [Dv][width]
  T* dscores = carver.array<T>(chunk * width);                            // [chunk][width]
  Index channels = shared.s.channels ? F : 0;
  T* pairs = carver.array<T>(chunk * larger(width, channels));  // [chunk][width]: P dP, for the decay; or [chunk][F]
  T* du = carver.array<T>(chunk * Dv);                          // [chunk][Dv]
  T* dkf = carver.array<T>(chunk * F);                          // [chunk][F]
  T* dqf = carver.array<T>(chunk * F);                          // [chunk][F]
  Index rows = larger(width, chunk* channels);
  T* readers = carver.array<T>(rows);  // [width] or [chunk][F]: what reads the state before the chunk, for the decay
  T* kept = carver.array<T>(rows);     // likewise: what the state after the chunk holds, for the decay
  T* sum = carver.array<T>(larger(width, channels));
  std::size_t bytes = carver.used();

  LinearAttentionBackwardScratch(void* base, const LinearAttentionSizes& sizes)
      : shared(base, sizes), carver(base, shared.bytes) {}

  /// Where the delta rule's system of a chunk of the segment is kept: keep_states() solves it, chunk_backward() reads
  /// it again.
  void use_chunk(Index number) {
    if (!shared.s.delta) return;
    shared.keys = solved + number * solved_count;
    shared.u = shared.keys + chunk * width;
    shared.residual = shared.u + chunk * Dv;
  }
};

/// to [Dv][F, up to whole vectors] = S [F][Dv] turned.
template <class T> [[gnu::noinline]] void turn_state(const T* from, Index features, Index v_head_dim, T* to) {
  pack_transposed<T>(from, v_head_dim, features, v_head_dim, T{1}, to, round_up(features, Simd<T>::kLanes));
}

/// g and dn of one head's tokens.
template <class T> inline void load_gradient(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, Index head, Index begin, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  const Index Dv = f.v_head_dim;
  for (Index i = 0; i < w.shared.width; ++i) w.dn[i] = 0;
  for (Index i = 0; i < count; ++i) {
    const T* dout = t.dout.at(head, begin + i);
    T* g = w.g + i * Dv;
    if (!f.normalized) {
      set_row(T{1}, dout, g, Dv);
      continue;
    }
    const T n = *f.normalizer.at(head, begin + i);
    if (vanishes(n)) {
      for (Index e = 0; e < Dv; ++e) g[e] = 0;
      continue;
    }
    set_row(T{1} / n, dout, g, Dv);
    w.dn[i] = -dot_rows(g, f.out.at(head, begin + i), Dv, f.features.invariant);
  }
}

/// dlocal += into qf g^T, for one head, after the chunk's decay of it. g and dn are decayed in place.
template <class T> [[gnu::noinline]] void add_queries(
    const LinearAttentionGradient<T>& t, const LinearAttentionBackwardScratch<T>& w, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  const Index F = f.features.count, Dv = f.v_head_dim;
  if (f.log_decay.data != nullptr) {
    decay_rows(f, w.shared.into, w.g, Dv, count, Dv);
    for (Index i = 0; i < count; ++i) w.dn[i] *= w.shared.into[i];
  }
  add_outer(w.shared.qf, F, F, w.g, Dv, count, t.dlocal, Dv, &w.shared.ahead);
  if (f.normalized) add_weighted_rows(w.dn, 1, w.shared.qf, F, count, t.dlocal + F * Dv, F);
}

/// dqf = S g[i] + dn[i] z, not decayed yet.
template <class T> inline void queries_of_state(
    const LinearAttentionSegment<T>& f, const LinearAttentionBackwardScratch<T>& w, const T* z, Index count) {
  const Index F = f.features.count, Dv = f.v_head_dim, stride = round_up(F, Simd<T>::kLanes);
  rows_times<Store::kSet>(w.g, Dv, Dv, w.state_turned, stride, w.dqf, F, count, F, &w.shared.ahead);
  if (f.normalized) rows_times<Store::kAdd>(w.dn, 1, 1, z, F, w.dqf, F, count, F);
}

/// dkf = dS u[j] + dz and du = dS^T kf[j], not decayed yet.
template <class T> [[gnu::noinline]] void keys_of_state(const LinearAttentionSegment<T>& f,
    const LinearAttentionBackwardScratch<T>& w, const T* dstate, const ChunkValues<T>& values, Index count) {
  constexpr T one = 1;
  const Index F = f.features.count, Dv = f.v_head_dim, stride = round_up(F, Simd<T>::kLanes);
  rows_times<Store::kSet>(w.shared.kf, F, F, dstate, Dv, w.du, Dv, count, Dv, &w.shared.ahead);
  rows_times<Store::kSet>(values.rows, values.stride, Dv, w.dstate_turned, stride, w.dkf, F, count, F, &w.shared.ahead);
  if (f.normalized) rows_times<Store::kAdd>(&one, 0, 1, dstate + F * Dv, F, w.dkf, F, count, F);
}

template <class T> [[gnu::noinline]] void write_queries(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, Index head, Index begin, Index count) {
  if (t.dq.data == nullptr) return;
  const LinearAttentionSegment<T>& f = t.forward;
  feature_rows_backward(f.features, f.q.at(head, begin), f.q.stride, count, f.features.query_scale, w.shared.qf, w.dqf,
      t.dq.at(head, begin), t.dq.stride, t.accumulate_qk);
}

/// kf must be phi(k) as it was, without decay.
template <class T> [[gnu::noinline]] void write_keys(
    const LinearAttentionGradient<T>& t, const LinearAttentionBackwardScratch<T>& w, Index begin, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  if (t.dk.data != nullptr) {
    feature_rows_backward(f.features, f.k.at(0, begin), f.k.stride, count, T{1}, w.shared.kf, w.dkf, t.dk.at(0, begin),
        t.dk.stride, t.accumulate_qk);
  }
  if (t.dv.data == nullptr) return;
  for (Index j = 0; j < count; ++j) {
    T* row = t.dv.at(0, begin + j);
    if (t.accumulate_v) {
      add_row(T{1}, w.du + j * f.v_head_dim, row, f.v_head_dim);
    } else {
      set_row(T{1}, w.du + j * f.v_head_dim, row, f.v_head_dim);
    }
  }
}

/// to[r] += a[r, :].b[r, :]
template <class T>
[[gnu::noinline]] void add_row_dots(const T* a, const T* b, Index count, Index width, bool invariant, T* to) {
  for (Index r = 0; r < count; ++r) to[r] += dot_rows(a + r * width, b + r * width, width, invariant);
}

/// Scores and their gradients of one head, and what follows from them within the chunk.
template <class T> inline void chunk_head_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, const ChunkValues<T>& values, const T* z, bool finite, Index head,
    Index begin, Index count) {
  using V = typename Simd<T>::V;
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = f.features.count, Dv = f.v_head_dim;
  load_queries(f, c, head, begin, count);
  load_gradient(t, w, head, begin, count);
  pack_transposed<T>(w.g, Dv, count, Dv, T{1}, w.g_panel, c.width);
  triangle_scores(c.kf, F, c.q_panel, c.width, F, count, c.scores);
  triangle_scores(values.rows, values.stride, w.g_panel, c.width, Dv, count, w.dscores);
  mask_triangle<Triangle::kWithDiagonal>(f, c, count, c.scores, [&](Index j, Index i, V, V score) {
    const Index at = j * c.width + i;
    const V d = load<T>(w.dscores + at) + load<T>(w.dn + i);
    store<T>(w.dscores + at, d);
    if (t.dlog_decay.data == nullptr) return;
    store<T>(w.pairs + at, load<T>(w.pairs + at) + (load<T>(c.lane + i) > splat<T>(c.lane[j]) ? score * d : V{}));
  });
  mask_triangle<Triangle::kWithDiagonal>(f, c, count, w.dscores);
  const bool all_finite = finite && rows_finite(c.qf, F, count, F) && rows_finite(w.g, Dv, count, Dv);
  const Index step = triangle_step<T>(all_finite);
  add_later(c.scores, c.width, count, w.g, Dv, w.du, Dv, Dv, step);
  add_later(w.dscores, c.width, count, c.qf, F, w.dkf, F, F, step);
  queries_of_state(f, w, z, count);
  decay_rows(f, c.into, w.dqf, F, count, F);
  if (t.dlog_decay.data != nullptr) add_row_dots(c.qf, w.dqf, count, F, f.features.invariant, w.readers);
  add_earlier(w.dscores, c.width, count, c.kf, F, w.dqf, F, F, step);
  write_queries(t, w, head, begin, count);
  add_queries(t, w, count);
}

/// From du, the gradient of u, to that of v (in du), and the gradients of keys, state, beta and decay through u.
template <class T> inline void delta_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, bool finite, Index begin, Index count) {
  using V = typename Simd<T>::V;
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = f.features.count, Dv = f.v_head_dim, stride = round_up(F, Simd<T>::kLanes);
  solve_delta_backward(f, c, begin, count, w.du, t.dbeta.data == nullptr ? nullptr : t.dbeta.at(0, begin));
  // w[i] = v[i] - sum_j decay(j, i) (kf[j].kf[i]) u[j] ..
  pack_transposed<T>(w.du, Dv, count, Dv, T{1}, w.g_panel, c.width);
  triangle_scores(c.u, Dv, w.g_panel, c.width, Dv, count, w.dscores);
  mask_triangle<Triangle::kNegated>(f, c, count, w.dscores, [&](Index j, Index i, V x, V) {
    if (t.dlog_decay.data == nullptr) return;
    const Index at = j * c.width + i;
    store<T>(w.pairs + at,
        load<T>(w.pairs + at) + (load<T>(c.lane + i) > splat<T>(c.lane[j]) ? load<T>(c.keys + at) * x : V{}));
  });
  const Index step = triangle_step<T>(finite && rows_finite(w.du, Dv, count, Dv) && rows_finite(c.u, Dv, count, Dv));
  add_earlier(w.dscores, c.width, count, c.kf, F, w.dkf, F, F, step);
  add_later(w.dscores, c.width, count, c.kf, F, w.dkf, F, F, step);
  // .. - into[i] S^T kf[i]
  for (Index i = 0; i < count; ++i) {
    set_row(f.log_decay.data == nullptr ? T{-1} : -c.into[i], w.du + i * Dv, w.g + i * Dv, Dv);
  }
  rows_times<Store::kSet>(w.g, Dv, Dv, w.state_turned, stride, w.dqf, F, count, F);
  if (t.dlog_decay.data != nullptr) add_row_dots(c.kf, w.dqf, count, F, f.features.invariant, w.readers);
  for (Index i = 0; i < count; ++i) add_row(T{1}, w.dqf + i * F, w.dkf + i * F, F);
  add_outer(c.kf, F, F, w.g, Dv, count, t.dlocal, Dv);
}

/// dlog_decay[t] = sum of all that passes from before token t to t or after it: from token to token (pairs), from the
/// state before the chunk to tokens (readers), from tokens to the state after it (kept), from state to state (through).
template <class T> inline void decay_gradient(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, T through, Index begin, Index count) {
  constexpr int n = Simd<T>::kLanes;
  using V = typename Simd<T>::V;
  const LinearAttentionScratch<T>& c = w.shared;
  T readers = 0;
  for (Index i = count - 1; i >= 0; --i) w.readers[i] = readers += w.readers[i];
  for (Index i = 0; i < c.width; i += n) store<T>(w.sum + i, V{});
  T kept = through;
  for (Index j = 0; j < count; ++j) {
    LaneSums<T> sums(c.s.invariant);
    const V at = splat<T>(c.lane[j]), end = splat<T>(static_cast<T>(count));
    for (Index i = j / n * n; i < c.width; i += n) {
      const V lane = load<T>(c.lane + i);
      sums.at(i) += lane >= at ? (lane < end ? load<T>(w.sum + i) : V{}) : V{};
      store<T>(w.sum + i, load<T>(w.sum + i) + load<T>(w.pairs + j * c.width + i));
    }
    *t.dlog_decay.at(0, begin + j) = sums.total() + w.readers[j] + kept;
    kept += w.kept[j];
  }
}

/// The gradients of one chunk; `state` is that before it.
template <class T> inline void chunk_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, const T* state, const ExactSum<T>& log_left, Index begin, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionScratch<T>& c = w.shared;
  const Index F = f.features.count, Dv = f.v_head_dim, states = state_count(f);
  key_features(f, c, begin, count);
  const ChunkValues<T> values =
      f.beta.data == nullptr ? ChunkValues<T>{f.v.at(0, begin), f.v.stride} : ChunkValues<T>{c.u, f.v_head_dim};
  join_state(t.dbase, t.dlocal, exp_of_one(log_left), chunk_decay(f, c, count), states, w.dstate);
  turn_state(state, F, Dv, w.state_turned);
  turn_state(w.dstate, F, Dv, w.dstate_turned);
  keys_of_state(f, w, w.dstate, values, count);
  decay_rows(f, c.after, w.du, Dv, count, Dv);
  decay_rows(f, c.after, w.dkf, F, count, F);
  T through = 0;
  if (t.dlog_decay.data != nullptr) {
    for (Index i = 0; i < c.width; ++i) w.readers[i] = w.kept[i] = 0;
    for (Index e = 0; e < count * c.width; ++e) w.pairs[e] = 0;
    add_row_dots(c.kf, w.dkf, count, F, f.features.invariant, w.kept);
    through = c.into[count - 1] * dot_rows(state, w.dstate, f.normalized ? states : F * Dv, f.features.invariant);
  }
  const bool finite = rows_finite(c.kf, F, count, F) && rows_finite(values.rows, values.stride, count, Dv);
  for (Index head = 0; head < f.group_size; ++head) {
    chunk_head_backward(t, w, values, state + F * Dv, finite, head, begin, count);
  }
  if (f.beta.data != nullptr) delta_backward(t, w, finite, begin, count);
  if (t.dlog_decay.data != nullptr) decay_gradient(t, w, through, begin, count);
  write_keys(t, w, begin, count);
}

/// Only what the chunk's queries give to the gradient of the state.
template <class T> inline void chunk_dstate(
    const LinearAttentionGradient<T>& t, const LinearAttentionBackwardScratch<T>& w, Index begin, Index count) {
  const LinearAttentionSegment<T>& f = t.forward;
  if (f.log_decay.data != nullptr) scale_row(t.dlocal, state_count(f), w.shared.into[count - 1]);
  for (Index head = 0; head < f.group_size; ++head) {
    query_features(f, w.shared, head, begin, count);
    load_gradient(t, w, head, begin, count);
    add_queries(t, w, count);
  }
}

/// states[c] = the state before chunk c of the segment; with the delta rule solved[c] = its system, solved.
template <class T> inline void keep_states(const LinearAttentionSegment<T>& f, LinearAttentionBackwardScratch<T>& w) {
  const LinearAttentionScratch<T>& c = w.shared;
  T* state = w.states;
  begin_state(f, f.base, f.channels ? state : f.local);
  ExactSum<T> log_left;
  for (Index begin = f.begin; begin < f.end; begin += f.chunk, state += w.count) {
    const Index count = smaller(f.chunk, f.end - begin);
    const ExactSum<T> log_whole = chunk_decays(f, c, begin, count);
    if (!f.channels) join_state(f.base, f.local, exp_of_one(log_left), chunk_decay(f, c, count), w.count, state);
    const bool last = begin + count == f.end;
    if (last && f.beta.data == nullptr) break;
    w.use_chunk((begin - f.begin) / f.chunk);
    fetch_rows(c, 2, begin + count, smaller(f.chunk, f.end - begin - count),
        {{f.k.data, f.k.stride, f.features.head_dim}, {f.v.data, f.v.stride, f.v_head_dim}});
    key_features(f, c, begin, count);
    const ChunkValues<T> values = chunk_values(f, c, state, begin, count);
    if (last) break;
    if (f.channels) {
      set_row(T{1}, state, state + w.count, w.F * w.Dv);
      next_state(c, values, count, state + w.count);
    } else {
      add_keys(f, c, values.rows, values.stride, count);
    }
    log_left.add(log_whole);
  }
}

/// The same with a decay per channel (channels_backward.h): dlocal, the gradient of the state after the chunk, becomes
/// that of `state`.
template <class T> void channel_chunk_backward(const LinearAttentionGradient<T>& t,
    const LinearAttentionBackwardScratch<T>& w, const T* state, Index begin, Index count);

template <class T> void linear_attention_backward(const LinearAttentionGradient<T>& t, void* scratch) {
  const LinearAttentionSegment<T>& f = t.forward;
  LinearAttentionBackwardScratch<T> w(scratch, sizes_of(f));
  const bool state_only = !f.channels && t.dq.data == nullptr && t.dk.data == nullptr && t.dv.data == nullptr &&
                          t.dlog_decay.data == nullptr && t.dbeta.data == nullptr && f.beta.data == nullptr;
  const Index chunks = (f.end - f.begin + f.chunk - 1) / f.chunk;
  begin_state(f, t.dbase, t.dlocal);
  if (!state_only) keep_states(f, w);
  ExactSum<T> log_left;
  for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
    const Index begin = f.begin + chunk * f.chunk, count = smaller(f.chunk, f.end - begin);
    const T* const state = w.states + chunk * w.count;
    const ExactSum<T> log_whole = chunk_decays(f, w.shared, begin, count);
    fetch_rows(w.shared, 4, begin - f.chunk, chunk == 0 ? 0 : f.chunk,
        {{f.q.data, f.q.stride, f.features.head_dim}, {t.dout.data, t.dout.stride, f.v_head_dim},
            {state_only ? nullptr : f.k.data, f.k.stride, f.features.head_dim},
            {state_only ? nullptr : f.v.data, f.v.stride, f.v_head_dim}, {t.dq.data, t.dq.stride, f.features.head_dim},
            {t.dk.data, t.dk.stride, f.features.head_dim}, {t.dv.data, t.dv.stride, f.v_head_dim}});
    w.use_chunk(chunk);
    if (f.channels) {
      channel_chunk_backward(t, w, state, begin, count);
    } else if (state_only) {
      chunk_dstate(t, w, begin, count);
    } else {
      chunk_backward(t, w, state, log_left, begin, count);
    }
    log_left.add(log_whole);
  }
  if (!f.channels) t.dlocal[w.count] = exp_of_one(log_left);
}

/// Not causal: dq of every query from the one state.
template <class T> void linear_attention_backward_queries(const LinearAttentionGradient<T>& t, void* scratch) {
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionBackwardScratch<T> w(scratch, sizes_of(f));
  const Index F = f.features.count, Dv = f.v_head_dim;
  turn_state(f.base, F, Dv, w.state_turned);
  for (Index begin = f.begin; begin < f.end; begin += f.chunk) {
    const Index count = smaller(f.chunk, f.end - begin);
    for (Index head = 0; head < f.group_size; ++head) {
      query_features(f, w.shared, head, begin, count);
      load_gradient(t, w, head, begin, count);
      queries_of_state(f, w, f.base + F * Dv, count);
      write_queries(t, w, head, begin, count);
    }
  }
}

/// Not causal: dk and dv of every key from the gradient of the one state.
template <class T> void linear_attention_backward_keys(const LinearAttentionGradient<T>& t, void* scratch) {
  const LinearAttentionSegment<T>& f = t.forward;
  const LinearAttentionBackwardScratch<T> w(scratch, sizes_of(f));
  turn_state(t.dbase, f.features.count, f.v_head_dim, w.dstate_turned);
  for (Index begin = f.begin; begin < f.end; begin += f.chunk) {
    const Index count = smaller(f.chunk, f.end - begin);
    key_features(f, w.shared, begin, count);
    keys_of_state(f, w, t.dbase, {f.v.at(0, begin), f.v.stride}, count);
    write_keys(t, w, begin, count);
  }
}

}  // namespace
}  // namespace qkv
