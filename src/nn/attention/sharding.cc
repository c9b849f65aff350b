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

/// Calls visit(rows of the whole, rows of the shard, count) for q, k and v.
template <class Visit> void for_each_row_range(const AttentionLayer& whole, const Cut& cut, const Visit& visit) {
  const Index d = cut.head_dim, own = cut.num_heads * d, own_kv = cut.num_kv_heads * d;
  visit(cut.first_head * d, Index{0}, own);
  visit(whole.width() + cut.first_kv_head * d, own, own_kv);
  visit(whole.width() + whole.kv_width() + cut.first_kv_head * d, own + own_kv, own_kv);
}

}  // namespace

struct AttentionLayer::Shards {
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
    own.first_head_ = cut.first_head;
    own.whole_heads_ = whole.num_heads();
    own.train(whole.training());
    const Tensors& from = whole.values_;
    const Index width = whole.embed_dim();
    for_each_row_range(whole, cut, [&](Index begin, Index to, Index rows) {
      std::copy_n(from.in_weight.data() + begin * width, rows * width, own.values_.in_weight.data() + to * width);
      if (whole.has_bias()) std::copy_n(from.in_bias.data() + begin, rows, own.values_.in_bias.data() + to);
    });
    for (Index row = 0; row < width; ++row) {
      std::copy_n(from.out_weight.data() + row * whole.width() + cut.first_head * cut.head_dim, own.width(),
          own.values_.out_weight.data() + row * own.width());
    }
    if (own.has_output_bias()) std::ranges::copy(from.out_bias.span(), own.values_.out_bias.data());
    std::ranges::copy(from.q_norm.span(), own.values_.q_norm.data());
    std::ranges::copy(from.k_norm.span(), own.values_.k_norm.data());
    return made;
  }

  /// Adds the shard's gradients to the whole's, or takes its parameters.
  static void merge(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts, const char* function,
      bool gradients) {
    const Cut cut = cut_of(whole, part, parts);
    check<ShapeError>(shard.embed_dim() == whole.embed_dim() && shard.num_heads() == cut.num_heads &&
                          shard.num_kv_heads() == cut.num_kv_heads && shard.head_dim() == cut.head_dim &&
                          shard.has_bias() == whole.has_bias() && shard.qk_norm() == whole.qk_norm() &&
                          shard.has_output_bias() == (whole.has_output_bias() && part == 0),
        function, "the shard must be part ", part, " of ", parts, " of the layer: got ", shard.values_.in_weight,
        " for ", whole.values_.in_weight);
    const auto write = [gradients](const float* from, Index count, float* to) {
      for (Index n = 0; n < count; ++n) to[n] = gradients ? to[n] + from[n] : from[n];
    };
    const Tensors& from = gradients ? shard.gradients_ : shard.values_;
    Tensors& to = gradients ? whole.gradients_ : whole.values_;
    const Index rows_width = whole.embed_dim();
    for_each_row_range(whole, cut, [&](Index begin, Index own, Index rows) {
      write(from.in_weight.data() + own * rows_width, rows * rows_width, to.in_weight.data() + begin * rows_width);
      if (whole.has_bias()) write(from.in_bias.data() + own, rows, to.in_bias.data() + begin);
    });
    for (Index row = 0; row < rows_width; ++row) {
      write(from.out_weight.data() + row * shard.width(), shard.width(),
          to.out_weight.data() + row * whole.width() + cut.first_head * cut.head_dim);
    }
    write(from.out_bias.data(), from.out_bias.count(), to.out_bias.data());
    write(from.q_norm.data(), from.q_norm.count(), to.q_norm.data());
    write(from.k_norm.data(), from.k_norm.count(), to.k_norm.data());
  }
};

GroupedQueryAttention shard(const AttentionLayer& whole, Index part, Index parts) {
  return AttentionLayer::Shards::shard(whole, part, parts);
}

void add_shard_gradients(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  AttentionLayer::Shards::merge(whole, shard, part, parts, "add_shard_gradients", true);
}

void take_shard(AttentionLayer& whole, const AttentionLayer& shard, Index part, Index parts) {
  AttentionLayer::Shards::merge(whole, shard, part, parts, "take_shard", false);
}

}  // namespace qkv::inline v0::nn
