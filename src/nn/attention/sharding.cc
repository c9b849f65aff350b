#include "qkv/nn/sharding.h"

#include <algorithm>

#include "core/check.h"
#include "nn/attention/check_shard.h"

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
  check<OptionError>(
      parts >= 1 && part >= 0 && part < parts, function, "part must be in [0, parts): got ", part, " of ", parts);
  check<OptionError>(heads % parts == 0 && (kv_heads % parts == 0 || parts % kv_heads == 0), function,
      "parts must divide num_heads, and divide num_kv_heads or be a multiple of it: got ", parts, " for ", heads,
      " and ", kv_heads);
  check<OptionError>(
      whole.has_output_projection(), function, "the layer must have an output projection: got ", whole.name());
  check<UnsupportedError>(
      whole.qk_norm() != QkNorm::kVector, function, "norms of q and k over the whole vector cannot be cut by heads");
  return {whole.head_dim(), part * (heads / parts), heads / parts, part * kv_heads / parts,
      std::max<Index>(1, kv_heads / parts)};
}

}  // namespace

struct AttentionLayer::Shards {
  /// visit(numbers of the whole, the same of the shard, how many) for all that the shard holds of q, k, v, output.
  template <class Whole, class Own, class Visit> static void for_each_piece(const AttentionLayer& whole,
      const AttentionLayer& shard, const Cut& cut, Whole& all, Own& own, const Visit& visit) {
    const Index d = cut.head_dim, heads = cut.num_heads * d, kv_heads = cut.num_kv_heads * d, width = whole.embed_dim();
    const auto rows = [&](Index begin, Index to, Index count) {
      visit(all.in_weight.data() + begin * width, own.in_weight.data() + to * width, count * width);
      if (whole.has_bias()) visit(all.in_bias.data() + begin, own.in_bias.data() + to, count);
    };
    rows(cut.first_head * d, 0, heads);
    rows(whole.width() + cut.first_kv_head * d, heads, kv_heads);
    rows(whole.width() + whole.kv_width() + cut.first_kv_head * d, heads + kv_heads, kv_heads);
    for (Index row = 0; row < width; ++row) {
      visit(all.out_weight.data() + row * whole.width() + cut.first_head * d,
          own.out_weight.data() + row * shard.width(), shard.width());
    }
    visit(all.out_bias.data(), own.out_bias.data(), own.out_bias.count());
    visit(all.q_norm.data(), own.q_norm.data(), own.q_norm.count());
    visit(all.k_norm.data(), own.k_norm.data(), own.k_norm.count());
  }

  static GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts) {
    const Cut cut = cut_of(whole, part, parts);
    LayerConfig config = whole.config();
    config.num_heads = cut.num_heads;
    config.num_kv_heads = cut.num_kv_heads;
    config.head_dim = cut.head_dim;
    config.bias = whole.has_bias();
    config.output_bias = whole.has_output_bias() && part == 0;
    config.qk_norm = whole.qk_norm();
    GroupedQueryAttention made(config);
    AttentionLayer& own = made;
    own.first_head_ = whole.first_head_ + cut.first_head;
    own.whole_heads_ = whole.whole_heads_ > 0 ? whole.whole_heads_ : whole.num_heads();
    own.train(whole.training());
    for_each_piece(whole, own, cut, whole.values_, own.values_,
        [](const float* from, float* to, Index count) { std::copy_n(from, count, to); });
    return made;
  }

  static Cut checked(
      const AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts, const char* function) {
    const Cut cut = cut_of(whole, part, parts);
    check<ShapeError>(shard.embed_dim() == whole.embed_dim() && shard.num_heads() == cut.num_heads &&
                          shard.num_kv_heads() == cut.num_kv_heads && shard.head_dim() == cut.head_dim &&
                          shard.has_bias() == whole.has_bias() && shard.qk_norm() == whole.qk_norm() &&
                          shard.has_output_bias() == (whole.has_output_bias() && part == 0),
        function, "the shard must be part ", part, " of ", parts, " of the layer: got ", shard.values_.in_weight,
        " for ", whole.values_.in_weight);
    return cut;
  }

  /// Adds the shard's gradients to the whole's, or takes its parameters.
  static void merge(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts, const char* function,
      bool gradients) {
    const Cut cut = checked(whole, shard, part, parts, function);
    for_each_piece(whole, shard, cut, gradients ? whole.gradients_ : whole.values_,
        gradients ? shard.gradients_ : shard.values_, [gradients](float* to, const float* from, Index count) {
          for (Index n = 0; n < count; ++n) to[n] = gradients ? to[n] + from[n] : from[n];
        });
  }
};

GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts) {
  return AttentionLayer::Shards::shard(whole, part, parts);
}

void check_shard(
    const AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts, const char* function) {
  AttentionLayer::Shards::checked(whole, shard, part, parts, function);
}

void add_shard_gradients(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  AttentionLayer::Shards::merge(whole, shard, part, parts, "add_shard_gradients", true);
}

void merge_shard(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  AttentionLayer::Shards::merge(whole, shard, part, parts, "merge_shard", false);
}

}  // namespace qkv::inline v0::nn
