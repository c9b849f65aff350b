// The materialised form, forward and backward, and the parameters. Not: caches (latent_step.cc).
#include "qkv/nn/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "nn/attention/latent_rows.h"
#include "nn/parameters/parameters.h"
#include "nn/parameters/tensor_use.h"
#include "nn/rows/check_rows.h"
#include "qkv/attention.h"

namespace qkv::inline v0::nn {
namespace {

constexpr const char* kType = "MultiHeadLatentAttention";

const LatentAttentionConfig& checked(const LatentAttentionConfig& c) {
  check<OptionError>(c.qk_rope_head_dim >= 2 && c.qk_rope_head_dim % 2 == 0, kType,
                     "qk_rope_head_dim must be even and at least 2: got ", c.qk_rope_head_dim);
  check<OptionError>(c.embed_dim >= 1 && c.num_heads >= 1 && c.kv_lora_rank >= 1 && c.qk_nope_head_dim >= 1 &&
                         c.v_head_dim >= 1 && c.q_lora_rank >= 0,
                     kType,
                     "embed_dim, num_heads, kv_lora_rank, qk_nope_head_dim and v_head_dim must be at least 1, q_lora_rank 0 or "
                     "more: got ",
                     c.embed_dim, ", ", c.num_heads, ", ", c.kv_lora_rank, ", ", c.qk_nope_head_dim, ", ", c.v_head_dim, ", ",
                     c.q_lora_rank);
  check<OptionError>(c.norm_eps > 0 && std::isfinite(c.norm_eps), kType, "norm_eps must be a number above 0: got ", c.norm_eps);
  return c;
}

/// Projection n of the layer, whose numbers are the seed's streams 2 n and 2 n + 1.
Linear projection(const LatentAttentionConfig& c, Index n, Index in, Index out, bool bias) {
  return Linear({.in_features = in, .out_features = out, .bias = bias, .seed = c.seed, .stream = static_cast<std::uint32_t>(2 * n)});
}

}  // namespace

MultiHeadLatentAttention::MultiHeadLatentAttention(const LatentAttentionConfig& c)
    : config_(checked(c)),
      rotary_(c.qk_rope_head_dim, c.rotary),
      q_(projection(c, low_rank(), low_rank() ? c.q_lora_rank : c.embed_dim, c.num_heads * q_width(), false)),
      kv_a_(projection(c, low_rank() + 1, c.embed_dim, latent_width(), c.bias)),
      kv_b_(projection(c, low_rank() + 2, c.kv_lora_rank, c.num_heads * kv_width(), false)),
      o_(projection(c, low_rank() + 3, c.num_heads * c.v_head_dim, c.embed_dim, c.bias)) {
  const auto make_norm = [](Norm& norm, Index width) {
    norm.weight = Tensor<float>({width});
    std::ranges::fill(norm.weight.span(), 1.0F);
    norm.gradient = zeros_like(norm.weight);
  };
  make_norm(kv_norm_, c.kv_lora_rank);
  if (!low_rank()) return;
  q_a_ = projection(c, 0, c.embed_dim, c.q_lora_rank, c.bias);
  make_norm(q_norm_, c.q_lora_rank);
}

double MultiHeadLatentAttention::scale() const { return config_.scale.value_or(1 / std::sqrt(static_cast<double>(q_width()))); }

template <class T>
void MultiHeadLatentAttention::check_call(View<const T, 3> x, View<const T, 3> y, const char* what) const {
  check<ShapeError>(x.size(2) == config_.embed_dim && y.sizes() == x.sizes(), kType, what, " must be [B, T, ",
                    config_.embed_dim, "], both: got ", x, " and ", y);
  check_rows(kType, what, x, what, y);
}

template <class T>
void MultiHeadLatentAttention::project(View<const T, 3> x, LatentSavedOf<T>& saved, const RotaryPositions& positions,
                                       Context& context) const {
  const Index batch = x.size(0), length = x.size(1), rank = config_.kv_lora_rank, turned = config_.qk_rope_head_dim;
  resize(saved.x, {batch, length, config_.embed_dim});
  copy<T>(x, saved.x);
  resize(saved.q, {batch, length, config_.num_heads * q_width()});
  if (!low_rank()) {
    q_.forward(as_rows(std::as_const(saved.x)), as_rows(saved.q), context);
  } else {
    resize(saved.q_a, {batch, length, config_.q_lora_rank});
    resize(saved.q_a_norm, saved.q_a.sizes());
    q_a_->forward(as_rows(std::as_const(saved.x)), as_rows(saved.q_a), context);
    rms_norm_forward<T>(columns_of(std::as_const(saved.q_a), 1, 0, config_.q_lora_rank), q_norm_.weight.data(),
                        config_.norm_eps, columns_of(saved.q_a_norm, 1, 0, config_.q_lora_rank), context);
    q_.forward(as_rows(std::as_const(saved.q_a_norm)), as_rows(saved.q), context);
  }
  const View<T, 4> q = columns_of(saved.q, config_.num_heads, config_.qk_nope_head_dim, turned);
  rotary_.forward(q, q, positions, context);
  resize(saved.kv_a, {batch, length, latent_width()});
  resize(saved.latent, saved.kv_a.sizes());
  kv_a_.forward(as_rows(std::as_const(saved.x)), as_rows(saved.kv_a), context);
  rms_norm_forward<T>(columns_of(std::as_const(saved.kv_a), 1, 0, rank), kv_norm_.weight.data(), config_.norm_eps,
                      columns_of(saved.latent, 1, 0, rank), context);
  rotary_.forward(columns_of(std::as_const(saved.kv_a), 1, rank, turned), columns_of(saved.latent, 1, rank, turned), positions,
                  context);
}

template <class T>
void MultiHeadLatentAttention::materialise(View<const T, 3> latent, Tensor<T>& kv, Tensor<T>& k, Context& context) const {
  const Index batch = latent.size(0), length = latent.size(1), heads = config_.num_heads;
  resize(kv, {batch, length, heads * kv_width()});
  resize(k, {batch, length, heads * q_width()});
  const View<const T, 2> c(latent.data(), {batch * length, config_.kv_lora_rank}, {latent.stride(1), 1});
  kv_b_.forward(c, as_rows(kv), context);
  for (Index row = 0; row < batch * length; ++row) {
    const T* turned = latent.data() + row * latent_width() + config_.kv_lora_rank;
    for (Index h = 0; h < heads; ++h) {
      T* to = k.data() + (row * heads + h) * q_width();
      std::copy_n(kv.data() + (row * heads + h) * kv_width(), config_.qk_nope_head_dim, to);
      std::copy_n(turned, config_.qk_rope_head_dim, to + config_.qk_nope_head_dim);
    }
  }
}

template <class T>
void MultiHeadLatentAttention::forward_of(View<const T, 3> x, View<T, 3> y, LatentSavedOf<T>& saved,
                                          const LatentOptions& options, Context& context) const {
  check_call<T>(x, y, "x and y");
  const Index batch = x.size(0), length = x.size(1), heads = config_.num_heads;
  project(x, saved, options.positions, context);
  materialise<T>(saved.latent, saved.kv, saved.k, context);
  resize(saved.attended, {batch, length, heads * config_.v_head_dim});
  resize(saved.lse, {batch, heads, length});
  saved.positions = options.positions;
  saved.mask = options.causal.value_or(config_.causal) ? Mask::causal() & options.mask : options.mask;
  attention_forward(columns_of(std::as_const(saved.q), heads, 0, q_width()),
                    columns_of(std::as_const(saved.k), heads, 0, q_width()),
                    columns_of(std::as_const(saved.kv), heads, config_.qk_nope_head_dim, config_.v_head_dim),
                    {.out = columns_of(saved.attended, heads, 0, config_.v_head_dim), .lse = saved.lse},
                    {.mask = saved.mask, .scale = scale()}, context);
  linear_forward(View<const T, 3>(saved.attended), weights_of<T>(o_.weight(), o_.bias()), y, context);
}

template <class T>
void MultiHeadLatentAttention::backward_of(View<const T, 3> dy, LatentSavedOf<T>& saved, View<T, 3> dx, Context& context) {
  check<OptionError>(
      saved.x.rank() == 3 && saved.lse.rank() == 3 && saved.k.rank() == 3 && saved.latent.size(2) == latent_width(), kType,
      "saved must come from this layer's forward: got x ", saved.x);
  check_call<T>(dy, saved.x, "dy and x of forward");
  check<ShapeError>(dx.is_null() || dx.sizes() == dy.sizes(), kType, "dx must have the sizes of dy: got ", dx, " for ", dy);
  check_rows(kType, "dx", dx);
  const Index heads = config_.num_heads, rank = config_.kv_lora_rank, turned = config_.qk_rope_head_dim;
  for (auto [to, like] :
       {std::pair{&saved.dattended, &saved.attended}, std::pair{&saved.dq, &saved.q}, std::pair{&saved.dk, &saved.k},
        std::pair{&saved.dkv, &saved.kv}, std::pair{&saved.dlatent, &saved.latent}, std::pair{&saved.dx, &saved.x}}) {
    resize(*to, like->sizes());
  }
  linear_backward(View<const T, 3>(saved.attended), dy, weights_of<T>(o_.weight(), {}), View<T, 3>(saved.dattended),
                  o_.own_gradients(), context);
  attention_backward(columns_of(std::as_const(saved.q), heads, 0, q_width()),
                     columns_of(std::as_const(saved.k), heads, 0, q_width()),
                     columns_of(std::as_const(saved.kv), heads, config_.qk_nope_head_dim, config_.v_head_dim),
                     columns_of(std::as_const(saved.attended), heads, 0, config_.v_head_dim), saved.lse,
                     columns_of(std::as_const(saved.dattended), heads, 0, config_.v_head_dim),
                     {.dq = columns_of(saved.dq, heads, 0, q_width()),
                      .dk = columns_of(saved.dk, heads, 0, q_width()),
                      .dv = columns_of(saved.dkv, heads, config_.qk_nope_head_dim, config_.v_head_dim)},
                     {.mask = saved.mask, .scale = scale()}, context);
  // k = [k_n | r]: r is shared by the heads, whose gradients are added in their order.
  for (Index row = 0; row < saved.x.size(0) * saved.x.size(1); ++row) {
    const T* dk = saved.dk.data() + row * heads * q_width();
    for (Index h = 0; h < heads; ++h) {
      std::copy_n(dk + h * q_width(), config_.qk_nope_head_dim, saved.dkv.data() + (row * heads + h) * kv_width());
    }
    for (Index d = 0; d < turned; ++d) {
      float sum = 0;
      for (Index h = 0; h < heads; ++h) sum += static_cast<float>(dk[h * q_width() + config_.qk_nope_head_dim + d]);
      saved.dlatent.data()[row * latent_width() + rank + d] = static_cast<T>(sum);
    }
  }
  const auto c_of = [&](auto& latent) { return first_columns(as_rows(latent), rank); };
  kv_b_.backward(c_of(std::as_const(saved.latent)), as_rows(std::as_const(saved.dkv)), c_of(saved.dlatent), context);
  const View<T, 4> dc = columns_of(saved.dlatent, 1, 0, rank), dr = columns_of(saved.dlatent, 1, rank, turned);
  rotary_.backward(dr, dr, saved.positions, context);
  rms_norm_backward<T>(columns_of(std::as_const(saved.kv_a), 1, 0, rank), dc, kv_norm_.weight.data(), config_.norm_eps, dc,
                       kv_norm_.gradient.data(), saved.dnorm, context);
  const View<const T, 2> x = as_rows(std::as_const(saved.x));
  const View<T, 2> rows = as_rows(saved.dx);
  kv_a_.backward(x, as_rows(std::as_const(saved.dlatent)), rows, context);
  if (!dx.is_null()) copy<T>(saved.dx, dx);

  const View<T, 4> dq = columns_of(saved.dq, heads, config_.qk_nope_head_dim, turned);
  rotary_.backward(dq, dq, saved.positions, context);
  if (!low_rank()) {
    q_.backward(x, as_rows(std::as_const(saved.dq)), rows, context);
  } else {
    resize(saved.dq_a, saved.q_a.sizes());
    q_.backward(as_rows(std::as_const(saved.q_a_norm)), as_rows(std::as_const(saved.dq)), as_rows(saved.dq_a), context);
    const View<T, 4> dq_a = columns_of(saved.dq_a, 1, 0, config_.q_lora_rank);
    rms_norm_backward<T>(columns_of(std::as_const(saved.q_a), 1, 0, config_.q_lora_rank), dq_a, q_norm_.weight.data(),
                         config_.norm_eps, dq_a, q_norm_.gradient.data(), saved.dnorm, context);
    q_a_->backward(x, as_rows(std::as_const(saved.dq_a)), rows, context);
  }
  if (dx.is_null()) return;
  for (Index b = 0; b < dx.size(0); ++b) {
    for (Index t = 0; t < dx.size(1); ++t) {
      const T* more = saved.dx.data() + (b * dx.size(1) + t) * dx.size(2);
      T* to = &dx(b, t, 0);
      for (Index e = 0; e < dx.size(2); ++e) to[e] = static_cast<T>(static_cast<float>(to[e]) + static_cast<float>(more[e]));
    }
  }
}

std::vector<Parameter> MultiHeadLatentAttention::parameters() {
  std::vector<Parameter> list;
  if (low_rank()) {
    append_parameters(list, *q_a_, "q_a_proj.");
    list.push_back(parameter("q_a_layernorm.weight", q_norm_.weight, q_norm_.gradient));
  }
  append_parameters(list, q_, low_rank() ? "q_b_proj." : "q_proj.");
  append_parameters(list, kv_a_, "kv_a_proj_with_mqa.");
  list.push_back(parameter("kv_a_layernorm.weight", kv_norm_.weight, kv_norm_.gradient));
  append_parameters(list, kv_b_, "kv_b_proj.");
  append_parameters(list, o_, "o_proj.");
  return list;
}

#define QKV_DEFINE(T)                                                                                                      \
  void MultiHeadLatentAttention::forward(View<const T, 3> x, View<T, 3> y, LatentSavedOf<T>& saved,                        \
                                         const LatentOptions& options, Context& context) const {                           \
    forward_of(x, y, saved, options, context);                                                                             \
  }                                                                                                                        \
  void MultiHeadLatentAttention::backward(View<const T, 3> dy, LatentSavedOf<T>& saved, View<T, 3> dx, Context& context) { \
    backward_of(dy, saved, dx, context);                                                                                   \
  }                                                                                                                        \
  template void MultiHeadLatentAttention::check_call(View<const T, 3>, View<const T, 3>, const char*) const;               \
  template void MultiHeadLatentAttention::project(View<const T, 3>, LatentSavedOf<T>&, const RotaryPositions&, Context&)   \
      const;                                                                                                               \
  template void MultiHeadLatentAttention::materialise(View<const T, 3>, Tensor<T>&, Tensor<T>&, Context&) const;
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::nn
