// Options and parameters of latent attention.
#include "qkv/nn/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "nn/attention/latent_run.h"
#include "nn/parameters/parameters.h"

namespace qkv::inline v0::nn {
namespace {

constexpr const char* kType = "MultiHeadLatentAttention";

const LatentAttentionConfig& checked(const LatentAttentionConfig& c) {
  check_layer_sizes(kType,
      {c.embed_dim, c.num_heads, c.kv_lora_rank, c.q_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim});
  check<OptionError>(c.qk_rope_head_dim >= 2 && c.qk_rope_head_dim % 2 == 0, kType,
      "qk_rope_head_dim must be even and at least 2: got ", c.qk_rope_head_dim);
  check<OptionError>(c.embed_dim >= 1 && c.num_heads >= 1 && c.kv_lora_rank >= 1 && c.qk_nope_head_dim >= 1 &&
                         c.v_head_dim >= 1 && c.q_lora_rank >= 0,
      kType,
      "embed_dim, num_heads, kv_lora_rank, qk_nope_head_dim and v_head_dim must be at least 1, q_lora_rank 0 or more: "
      "got ",
      c.embed_dim, ", ", c.num_heads, ", ", c.kv_lora_rank, ", ", c.qk_nope_head_dim, ", ", c.v_head_dim, ", ",
      c.q_lora_rank);
  check<OptionError>(
      c.norm_eps > 0 && std::isfinite(c.norm_eps), kType, "norm_eps must be a number above 0: got ", c.norm_eps);
  check<OptionError>(
      std::isfinite(c.scale.value_or(1)), kType, "scale must be a finite number: got ", c.scale.value_or(1));
  return c;
}

/// Projection n of the layer, whose numbers are the seed's streams 2 n and 2 n + 1.
Linear projection(const LatentAttentionConfig& c, Index n, Index in, Index out, bool bias) {
  return Linear({.in_features = in,
      .out_features = out,
      .bias = bias,
      .seed = c.seed,
      .stream = static_cast<std::uint32_t>(2 * n)});
}

}  // namespace

MultiHeadLatentAttention::MultiHeadLatentAttention(const LatentAttentionConfig& c)
    : Module(kType),
      config_(checked(c)),
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

double MultiHeadLatentAttention::scale() const {
  return config_.scale.value_or(1 / std::sqrt(static_cast<double>(q_width())));
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

KVCacheConfig MultiHeadLatentAttention::cache_config(KVCacheConfig cache) const {
  cache.num_kv_heads = 1;
  cache.head_dim = latent_width();
  cache.v_head_dim = config_.kv_lora_rank;
  cache.values_in_keys = true;
  return cache;
}

void MultiHeadLatentAttention::forward(View<const float, 3> x, View<float, 3> y, LatentSaved& saved,
    const LatentOptions& options, Context& context) const {
  Run{*this}.forward(x, y, saved, options, context);
}
void MultiHeadLatentAttention::backward(
    View<const float, 3> dy, LatentSaved& saved, View<float, 3> dx, Context& context) {
  Back{*this}.backward(dy, saved, dx, context);
}
void MultiHeadLatentAttention::step(View<const float, 3> x, View<float, 3> y, KVCache& cache, LatentStepMemory& memory,
    const Mask& mask, Form form, Context& context) const {
  Run{*this}.step(x, y, cache, memory, mask, form, context);
}

}  // namespace qkv::inline v0::nn
