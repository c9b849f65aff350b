// The forms of attention: AttentionLayer with their names and defaults. self_attention.h begins with the same table for
// readers.
#include "core/check.h"
#include "qkv/nn/grouped_query_attention.h"
#include "qkv/nn/multi_head_attention.h"
#include "qkv/nn/self_attention.h"

namespace qkv::inline v0::nn {
namespace {

using RoleNames = std::array<std::string_view, 5>;
constexpr RoleNames kLadderNames = {"query_proj", "key_proj", "value_proj", "proj", "output_proj"};

/// A form before the caller's options.
struct Form {
  std::string_view type;
  std::string_view name;
  RoleNames names;
  bool merged = false;
  OutputProjection output = OutputProjection::kNone;
  bool bias = true;
  bool causal = false;
  EmptyRow empty_row = EmptyRow::kMean;
  float dropout = 0;
  float residual_dropout = 0;
};

AttentionLayerConfig configure(const Form& form, const LayerConfig& config) {
  return {.type = form.type,
          .name = form.name,
          .embed_dim = config.embed_dim,
          .bias = config.bias.value_or(form.bias),
          .output = form.output,
          .output_now = form.output == OutputProjection::kOptional && config.output_proj.value_or(false),
          .merged = form.merged,
          .names = form.names,
          .causal = config.causal.value_or(form.causal),
          .empty_row = config.empty_row.value_or(form.empty_row),
          .dropout = config.dropout.value_or(form.dropout),
          .residual_dropout = config.residual_dropout.value_or(form.residual_dropout),
          .init = config.init,
          .seed = config.seed};
}

constexpr Form kV1{.type = "SelfAttentionV1", .name = "v1", .names = kLadderNames};
constexpr Form kV2{
    .type = "SelfAttentionV2", .name = "v2", .names = kLadderNames, .merged = true, .output = OutputProjection::kOptional};
constexpr Form kV3{.type = "SelfAttentionV3",
                   .name = "v3",
                   .names = kLadderNames,
                   .merged = true,
                   .output = OutputProjection::kRequired,
                   .dropout = 0.1F};
constexpr Form kV4{
    .type = "SelfAttentionV4", .name = "v4", .names = kLadderNames, .output = OutputProjection::kRequired, .dropout = 0.1F};
constexpr Form kSelfAttention{.type = "SelfAttention", .name = "self-attention", .names = {"W_Q", "W_K", "W_V", "proj", "W_O"}};
constexpr Form kSingleHead{.type = "SingleHeadAttention",
                           .name = "single-head",
                           .names = {"W_q", "W_k", "W_v", "proj", "W_o"},
                           .output = OutputProjection::kRequired,
                           .bias = false,
                           .causal = true,
                           .empty_row = EmptyRow::kNaN,
                           .dropout = 0.1F,
                           .residual_dropout = 0.1F};
constexpr Form kMultiHead{.type = "MultiHeadAttention",
                          .name = "mha",
                          .names = {"q_proj", "k_proj", "v_proj", "in_proj", "o_proj"},
                          .output = OutputProjection::kRequired,
                          .dropout = 0.1F,
                          .residual_dropout = 0.1F};

constexpr Form kGroupedQuery{.type = "GroupedQueryAttention",
                             .name = "grouped-query",
                             .names = {"q_proj", "k_proj", "v_proj", "in_proj", "o_proj"},
                             .output = OutputProjection::kRequired,
                             .bias = false,
                             .empty_row = EmptyRow::kZero};

AttentionLayerConfig configure_self_attention(const LayerConfig& config) {
  AttentionLayerConfig result = configure(kSelfAttention, config);
  result.width = config.d_k;
  return result;
}

/// No default: with another number of heads the same weights give another output.
void require_heads(const Form& form, const LayerConfig& config) {
  check<OptionError>(config.num_heads > 0, form.type, "num_heads must be given, at least 1: got ", config.num_heads);
}

AttentionLayerConfig configure_multi_head(const LayerConfig& config) {
  require_heads(kMultiHead, config);
  AttentionLayerConfig result = configure(kMultiHead, config);
  result.num_heads = config.num_heads;
  result.heads = true;
  return result;
}

AttentionLayerConfig configure_grouped(const LayerConfig& config) {
  require_heads(kGroupedQuery, config);
  AttentionLayerConfig result = configure(kGroupedQuery, config);
  check<OptionError>(config.head_dim > 0 || config.embed_dim % config.num_heads == 0, kGroupedQuery.type,
                     "num_heads must divide embed_dim where head_dim is not given: got ", config.num_heads, " heads for ",
                     config.embed_dim);
  result.width = config.num_heads * (config.head_dim > 0 ? config.head_dim : config.embed_dim / config.num_heads);
  result.num_heads = config.num_heads;
  result.num_kv_heads = config.num_kv_heads;
  result.heads = true;
  result.output_bias = config.output_bias.value_or(result.bias);
  result.grouped = true;
  result.qk_norm = config.qk_norm;
  result.norm_eps = config.norm_eps;
  result.rotary = config.rotary;
  return result;
}

/// `from` in another form: same sizes, options and parameters.
template <class To>
To converted(const AttentionLayer& from) {
  const AttentionLayerConfig& config = from.config();
  To to({.embed_dim = config.embed_dim,
         .bias = from.has_bias(),
         .dropout = config.dropout,
         .residual_dropout = config.residual_dropout,
         .causal = config.causal,
         .empty_row = config.empty_row,
         .init = config.init,
         .seed = config.seed});
  to.copy_parameters(from);
  to.train(from.training());
  return to;
}

}  // namespace

SelfAttentionV1::SelfAttentionV1(const LayerConfig& config) : AttentionLayer(configure(kV1, config)) {}
SelfAttentionV2::SelfAttentionV2(const LayerConfig& config) : AttentionLayer(configure(kV2, config)) {}
SelfAttentionV3::SelfAttentionV3(const LayerConfig& config) : AttentionLayer(configure(kV3, config)) {}
SelfAttentionV4::SelfAttentionV4(const LayerConfig& config) : AttentionLayer(configure(kV4, config)) {}
SelfAttention::SelfAttention(const LayerConfig& config) : AttentionLayer(configure_self_attention(config)) {}
SingleHeadAttention::SingleHeadAttention(const LayerConfig& config) : AttentionLayer(configure(kSingleHead, config)) {}
MultiHeadAttention::MultiHeadAttention(const LayerConfig& config) : AttentionLayer(configure_multi_head(config)) {}
GroupedQueryAttention::GroupedQueryAttention(const LayerConfig& config) : AttentionLayer(configure_grouped(config)) {}

SelfAttentionV1 to_v1(const SelfAttentionV2& layer) { return converted<SelfAttentionV1>(layer); }
SelfAttentionV2 to_v2(const SelfAttentionV1& layer) { return converted<SelfAttentionV2>(layer); }
SelfAttentionV3 to_v3(const SelfAttentionV4& layer) { return converted<SelfAttentionV3>(layer); }
SelfAttentionV4 to_v4(const SelfAttentionV3& layer) { return converted<SelfAttentionV4>(layer); }

}  // namespace qkv::inline v0::nn
