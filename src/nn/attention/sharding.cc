#include "qkv/nn/sharding.h"

#include <algorithm>

#include "core/check.h"

namespace qkv::inline v0::nn {
namespace {

/// A shard's part of the whole, in heads.
struct Cut {
  Index head_dim;
  Index first_head, num_heads;
  Index first_kv_head, num_kv_heads;
};

Cut cut_of(const AttentionLayer& whole, Index part, Index parts) {
  constexpr const char* function = "shard";
  const Index heads = whole.num_heads(), kv_heads = whole.num_kv_heads();
  check<OptionError>(parts >= 1 && part >= 0 && part < parts, function, "part must be in [0, parts): got ", part, " of ",
                     parts);
  check<OptionError>(heads % parts == 0 && (kv_heads % parts == 0 || parts % kv_heads == 0), function,
                     "parts must divide num_heads, and divide num_kv_heads or be a multiple of it: got ", parts, " for ", heads,
                     " and ", kv_heads);
  check<OptionError>(whole.has_output_projection(), function, "the layer must have an output projection: got ", whole.name());
  check<UnsupportedError>(whole.qk_norm() != QkNorm::kVector, function,
                          "norms of q and k over the whole vector cannot be cut by heads");
  return {whole.head_dim(), part * (heads / parts), heads / parts, part * kv_heads / parts,
          std::max<Index>(1, kv_heads / parts)};
}

/// Calls visit(rows of the whole, rows of the shard, count) for q, k and v.
template <class Visit>
void for_each_row_range(const AttentionLayer& whole, const Cut& cut, const Visit& visit) {
  const Index d = cut.head_dim, own = cut.num_heads * d, own_kv = cut.num_kv_heads * d;
  visit(cut.first_head * d, Index{0}, own);
  visit(whole.width() + cut.first_kv_head * d, own, own_kv);
  visit(whole.width() + whole.kv_width() + cut.first_kv_head * d, own + own_kv, own_kv);
}

}  // namespace

GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts) {
  const Cut cut = cut_of(whole, part, parts);
  const AttentionLayerConfig& config = whole.config();
  GroupedQueryAttention made({.embed_dim = whole.embed_dim(),
                              .num_heads = cut.num_heads,
                              .num_kv_heads = cut.num_kv_heads,
                              .head_dim = cut.head_dim,
                              .bias = whole.has_bias(),
                              .output_bias = whole.has_output_bias() && part == 0,
                              .qk_norm = whole.qk_norm(),
                              .norm_eps = config.norm_eps,
                              .rotary = config.rotary,
                              .dropout = config.dropout,
                              .residual_dropout = config.residual_dropout,
                              .causal = config.causal,
                              .empty_row = config.empty_row});
  made.config_.first_head = cut.first_head;
  made.config_.whole_heads = whole.num_heads();
  made.train(whole.training());
  const Index width = whole.embed_dim();
  for_each_row_range(whole, cut, [&](Index from, Index to, Index rows) {
    std::copy_n(whole.in_weight_.data() + from * width, rows * width, made.in_weight_.data() + to * width);
    if (whole.has_bias()) std::copy_n(whole.in_bias_.data() + from, rows, made.in_bias_.data() + to);
  });
  for (Index row = 0; row < width; ++row) {
    std::copy_n(whole.out_weight_.data() + row * whole.width() + cut.first_head * cut.head_dim, made.width(),
                made.out_weight_.data() + row * made.width());
  }
  if (made.has_output_bias()) std::ranges::copy(whole.out_bias_.span(), made.out_bias_.data());
  std::ranges::copy(whole.q_norm_.span(), made.q_norm_.data());
  std::ranges::copy(whole.k_norm_.span(), made.k_norm_.data());
  return made;
}

void AttentionLayer::merge_shard(const AttentionLayer& shard, Index part, Index parts, const char* function, bool gradients) {
  const Cut cut = cut_of(*this, part, parts);
  check<ShapeError>(
      shard.embed_dim() == embed_dim() && shard.num_heads() == cut.num_heads && shard.num_kv_heads() == cut.num_kv_heads &&
          shard.head_dim() == cut.head_dim && shard.has_bias() == has_bias() && shard.qk_norm() == qk_norm() &&
          shard.has_output_bias() == (has_output_bias() && part == 0),
      function, "the shard must be part ", part, " of ", parts, " of the layer: got ", shard.in_weight_, " for ", in_weight_);
  const auto merge = [gradients](const float* from, Index count, float* to) {
    for (Index n = 0; n < count; ++n) to[n] = gradients ? to[n] + from[n] : from[n];
  };
  using Part = Tensor<float> AttentionLayer::*;
  const auto pick = [gradients](Part value, Part gradient) { return gradients ? gradient : value; };
  const Part in_weight = pick(&AttentionLayer::in_weight_, &AttentionLayer::in_weight_gradient_),
             in_bias = pick(&AttentionLayer::in_bias_, &AttentionLayer::in_bias_gradient_),
             out_weight = pick(&AttentionLayer::out_weight_, &AttentionLayer::out_weight_gradient_);
  const Index rows_width = embed_dim();
  for_each_row_range(*this, cut, [&](Index to, Index from, Index rows) {
    merge((shard.*in_weight).data() + from * rows_width, rows * rows_width, (this->*in_weight).data() + to * rows_width);
    if (has_bias()) merge((shard.*in_bias).data() + from, rows, (this->*in_bias).data() + to);
  });
  for (Index row = 0; row < rows_width; ++row) {
    merge((shard.*out_weight).data() + row * shard.width(), shard.width(),
          (this->*out_weight).data() + row * width() + cut.first_head * cut.head_dim);
  }
  for (const Part whole : {pick(&AttentionLayer::out_bias_, &AttentionLayer::out_bias_gradient_),
                           pick(&AttentionLayer::q_norm_, &AttentionLayer::q_norm_gradient_),
                           pick(&AttentionLayer::k_norm_, &AttentionLayer::k_norm_gradient_)}) {
    merge((shard.*whole).data(), (shard.*whole).count(), (this->*whole).data());
  }
}

void add_shard_gradients(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  whole.merge_shard(shard, part, parts, "add_shard_gradients", true);
}

void take_shard(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  whole.merge_shard(shard, part, parts, "take_shard", false);
}

}  // namespace qkv::inline v0::nn
