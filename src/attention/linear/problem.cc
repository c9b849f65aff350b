// The checks of linear attention at the public boundary; kernels check nothing.
#include "attention/linear/problem.h"

#include <cmath>

#include "core/check.h"
#include "core/maths.h"
#include "dispatch/kernels.h"

namespace qkv::inline v0 {
namespace {

/// A number, or F of them, for each token: axes but for the last of four repeat where their size is 1.
template <class T, int kRank>
void check_tokens(const char* function, const char* name, const View<const T, kRank>& view, const LinearProblem<T>& p) {
  if (view.is_null()) return;
  check<UnsupportedError>(p.causal, function, name, " needs a causal sum: without causal, tokens have no order");
  const std::array<Index, 4> wanted{p.batch, p.num_kv_heads, p.kv_len, p.features.count};
  for (int axis = 0; axis < kRank; ++axis) {
    check<ShapeError>(view.size(axis) == wanted[static_cast<std::size_t>(axis)] || (axis < 3 && view.size(axis) == 1),
        function, name, " must have sizes [B|1, Hkv|1, T|1", kRank == 4 ? ", F" : "", "]: got ", view, " for ",
        [&] { return shape_text(wanted.data(), kRank); });
  }
}

/// v [B, Hkv, Tk, Dv], or with a multiple of the heads that q and k both have.
template <class T> void check_values(
    const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v) {
  check<ShapeError>(v.size(3) >= 1, function, "v_head_dim must be at least 1: got v ", v);
  check<ShapeError>(v.size(0) == k.size(0) && v.size(2) == k.size(2), function,
      "batch and length of v must equal those of k: got k ", k, ", v ", v);
  const Index heads = k.size(1);
  const bool grouped = heads > 0 && q.size(1) == heads && v.size(1) > 0 && v.size(1) % heads == 0;
  check<ShapeError>(v.size(1) == heads || grouped, function,
      "heads of v must be those of k, or a multiple of them where q and k have as many (value groups): got q ", q,
      ", k ", k, ", v ", v);
  check_last_stride(function, "v", v);
}

template <class T>
void set_features(const char* function, const LinearAttentionOptions<T>& options, LinearProblem<T>& p) {
  const Index head_dim = p.head_dim;
  const bool softmax = options.feature_map == FeatureMap::kSoftmax;
  const View<const T, 2>& rows = options.features;
  check<OptionError>(softmax != rows.is_null(), function,
      softmax ? "FeatureMap::kSoftmax needs features, which random_features() draws: features "
              : "features belong to FeatureMap::kSoftmax alone: got features ",
      rows);
  check<ShapeError>(!softmax || (rows.size(0) >= 1 && rows.size(1) == head_dim), function,
      "features must be [F, head_dim] with F at least 1: got ", rows, " for head_dim ", head_dim);
  const double scale = options.scale.value_or(softmax ? 1 / std::sqrt(static_cast<double>(head_dim)) : 1.0);
  check<OptionError>(
      std::isfinite(static_cast<T>(scale)), function, "scale must be finite in the type of q: got ", scale);
  check<OptionError>(
      !softmax || scale >= 0, function, "scale must not be below 0 in FeatureMap::kSoftmax: got ", scale);
  p.feature_rows = rows;
  p.root_scale = std::sqrt(std::abs(scale));
  LinearAttentionFeatures<T>& features = p.features;
  features.head_dim = head_dim;
  features.count = softmax ? rows.size(0) : head_dim;
  features.query_scale = softmax ? T{1} : static_cast<T>(scale);
  if (softmax) {
    features.half_norm = static_cast<T>(scale / 2);
    features.log_root = static_cast<T>(maths::log(static_cast<double>(rows.size(0))) / 2);
  }
  features.map = softmax                                          ? kLinearSoftmax
                 : options.feature_map == FeatureMap::kRelu       ? kLinearRelu
                 : options.feature_map == FeatureMap::kEluPlusOne ? kLinearEluPlusOne
                 : options.feature_map == FeatureMap::kUnit       ? kLinearUnit
                                                                  : kLinearIdentity;
}

}  // namespace

template <class T> double LinearProblem<T>::flops(Index length) const {
  const double widths = static_cast<double>(features.count + v_head_dim);
  return static_cast<double>(batch) * static_cast<double>(length) *
         (2.0 * static_cast<double>(num_heads + num_kv_heads) * static_cast<double>(features.count * v_head_dim) +
             (causal ? static_cast<double>(num_heads * chunk) * widths : 0.0) +
             (features.map == kLinearSoftmax ? 2.0 * static_cast<double>(num_heads + num_kv_heads) *
                                                   static_cast<double>(features.count * head_dim)
                                             : 0.0));
}

template <class T> LinearAttentionSegment<T> LinearProblem<T>::part(const Tokens& tokens) const {
  const Index item = tokens.item, b = item / num_kv_heads, g = item % num_kv_heads;
  LinearAttentionSegment<T> s{};
  s.features = features;
  s.q = head_rows(q, b, q_head(g));
  s.k = head_rows(k, b, k_head(g));
  s.v = head_rows(v, b, g);
  s.group_size = group_size();
  s.v_head_dim = v_head_dim;
  s.begin = tokens.begin;
  s.end = tokens.end;
  s.chunk = chunk;
  const auto repeated = [&](const auto& view) {
    const auto step = [&](int axis) { return view.size(axis) == 1 ? 0 : view.stride(axis); };
    return HeadRows<const T>{view.is_null() ? nullptr : view.data() + b * step(0) + g * step(1), 0, step(2)};
  };
  s.log_decay = channels.is_null() ? repeated(log_decay) : repeated(channels);
  s.beta = repeated(beta);
  s.channels = !channels.is_null();
  s.normalized = normalized;
  return s;
}

template <class T> void LinearProblem<T>::pass(const T* slot, T* state) const {
  if (channels.is_null()) return pass_segment(slot, state_count(), state);
  std::copy_n(slot, state_count(), state);
}

template <class T> void LinearProblem<T>::carve_features(Carver& carver) {
  if (feature_rows.is_null()) return;
  const Index count = features.count;
  T* const rows = carver.array<T>(feature_rows.count());
  T* const transposed = carver.array<T>(feature_rows.count());
  if (rows == nullptr) return;  // null only counts
  for (Index f = 0; f < count; ++f) {
    for (Index d = 0; d < head_dim; ++d) {
      const T value = static_cast<T>(root_scale * static_cast<double>(feature_rows(f, d)));
      rows[f * head_dim + d] = transposed[d * count + f] = value;
    }
  }
  features.rows = rows;
  features.rows_transposed = transposed;
}

template <class T> void LinearProblem<T>::load_initial(Index item, T* state) const {
  std::fill_n(state, slot_count(), T{});
  if (initial.kv.is_null()) return;
  const Index b = item / num_kv_heads, g = item % num_kv_heads, width = v_head_dim;
  for (Index f = 0; f < features.count; ++f) {
    for (Index e = 0; e < width; ++e) state[f * width + e] = initial.kv(b, g, f, e);
    if (normalized) state[features.count * width + f] = initial.z(b, g, f);
  }
}

template <class T> void LinearProblem<T>::store(const T* state, Index item, bool add, const LinearState<T>& to) const {
  const Index b = item / num_kv_heads, g = item % num_kv_heads;
  const auto put = [&](T& number, T value) { number = add ? number + value : value; };
  if (!to.kv.is_null()) {
    for (Index f = 0; f < to.kv.size(2); ++f) {
      for (Index e = 0; e < to.kv.size(3); ++e) put(to.kv(b, g, f, e), *state++);
    }
  }
  if (to.z.is_null()) return;
  for (Index f = 0; f < to.z.size(2); ++f) put(to.z(b, g, f), state[f]);
}

template <class T> void pass_segment(const T* slot, Index count, T* state) {
  const T left = slot[count];
  for (Index e = 0; e < count; ++e) state[e] = left * state[e] + slot[e];
}

bool segments_at_once(Index heads, Index segments, int threads, double extra) {
  if (threads == 1 || segments == 1 || heads == 0) return false;
  const Index rounds = (heads + threads - 1) / threads;
  return static_cast<double>(rounds * threads) > (1 + extra) * static_cast<double>(heads);
}

template <class T> template <class E>
void LinearProblem<T>::check_state(const char* function, const char* name, const LinearState<E>& state) const {
  if (state.kv.is_null() && state.z.is_null()) return;
  const std::array<Index, 4> kv{batch, num_kv_heads, features.count, v_head_dim};
  const std::array<Index, 3> z{batch, num_kv_heads, features.count};
  check<ShapeError>(
      state.kv.sizes() == kv, function, name, ".kv must be ", [&] { return shape_text(kv.data(), 4); }, ": got ",
      state.kv);
  check<OptionError>(
      normalized || state.z.is_null(), function, name, ".z belongs to the normalised form: got z ", state.z);
  check<ShapeError>(
      !normalized || state.z.sizes() == z, function, name, ".z must be ", [&] { return shape_text(z.data(), 3); },
      ": got ", state.z);
}

template <class T> LinearProblem<T> make_linear_problem(const char* function, const View<const T, 4>& q,
    const View<const T, 4>& k, const View<const T, 4>& v, const LinearAttentionOptions<T>& options,
    const Context& context) {
  check_qkv(function, q, k, v, true);
  check_values(function, q, k, v);
  LinearProblem<T> p{};
  p.batch = q.size(0);
  p.num_kv_heads = v.size(1);
  p.value_group = v.size(1) > k.size(1) ? v.size(1) / k.size(1) : 1;
  p.num_heads = q.size(1) * p.value_group;
  p.q_len = q.size(2);
  p.kv_len = k.size(2);
  p.head_dim = q.size(3);
  p.v_head_dim = v.size(3);
  p.q = q;
  p.k = k;
  p.v = v;
  p.log_decay = options.log_decay;
  p.beta = options.beta;
  p.channels = options.log_decay_channels;
  p.initial = options.initial;
  p.causal = options.causal;
  p.normalized = options.normalized;
  check<ShapeError>(!p.causal || p.q_len == p.kv_len, function,
      "causal needs as many queries as keys (what came before is in the initial state): got q ", q, ", k ", k);
  check_tokens(function, "log_decay", p.log_decay, p);
  check_tokens(function, "beta (the delta rule)", p.beta, p);
  check<UnsupportedError>(p.beta.is_null() || !p.normalized, function, "beta (the delta rule) has no normalised form");
  check<UnsupportedError>(
      p.causal || options.form == LinearForm::kChunked, function, "LinearForm::kRecurrent needs a causal sum");
  set_features(function, options, p);
  constexpr const char* name = "log_decay_channels";
  check<OptionError>(p.channels.is_null() || p.log_decay.is_null(), function, name,
      " replaces log_decay: pass one of them, got log_decay ", p.log_decay, ", ", name, " ", p.channels);
  check_tokens(function, name, p.channels, p);
  check<UnsupportedError>(p.channels.is_null() || !p.normalized, function,
      "log_decay_channels has no normalised form: set normalized to false");
  if (!p.channels.is_null()) check_last_stride(function, name, p.channels);
  p.check_state(function, "initial", p.initial);
  p.features.invariant = is_invariant(context);
  p.kernels = &for_element<T>(kernel_tables(context).linear_attention);
  const Index own = p.causal ? kLinearCausalChunk : kLinearFullChunk;
  p.chunk = options.form == LinearForm::kRecurrent ? 1 : p.channels.is_null() ? own : kLinearChannelChunk;
  p.segment = p.chunk * p.kernels->segment_chunks(p.features.count, p.v_head_dim);
  p.threads = context.threads();
  return p;
}

#define QKV_INSTANTIATE(T)                                                                                     \
  template struct LinearProblem<T>;                                                                            \
  template LinearProblem<T> make_linear_problem(const char*, const View<const T, 4>&, const View<const T, 4>&, \
      const View<const T, 4>&, const LinearAttentionOptions<T>&, const Context&);                              \
  template void LinearProblem<T>::check_state(const char*, const char*, const LinearState<const T>&) const;    \
  template void LinearProblem<T>::check_state(const char*, const char*, const LinearState<T>&) const;          \
  template void pass_segment(const T*, Index, T*);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
