// Nothing is allocated after the first call of a shape: ragged batches, rotary positions, a layer's forward, backward
// and steps.
#include <gtest/gtest.h>

#include "core/threads/context_impl.h"
#include "latent_configs.h"
#include "nn_support.h"
#include "qkv/varlen.h"
#include "support/allocations.h"

namespace qkv {
namespace {

using test::random_tensor;

TEST(Memory, RaggedBatchesAllocateNothingAfterTheFirstCall) {
  const std::vector<Index> offsets{0, 70, 70, 71, 400, 403}, kv_offsets{0, 70, 75, 600, 900, 1000};
  const Tensor<float> q = random_tensor({403, 4, 16}, 1), k = random_tensor({1000, 2, 16}, 2),
                      v = random_tensor({1000, 2, 16}, 3), dout = random_tensor({403, 4, 16}, 4);
  Tensor<float> out(q.sizes()), lse({403, 4}), dq(q.sizes()), dk(k.sizes()), dv(v.sizes());
  const AttentionOptions options{
      .mask = Mask::causal(Align::kBottomRight), .dropout = {.p = 0.1, .seed = 1, .training = true}};
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  expect_no_allocation_after_the_first(context, [&] {
    attention_varlen_forward(q, k, v, {.out = out, .lse = lse}, {offsets, kv_offsets}, options, context);
    attention_varlen_backward(
        q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, {offsets, kv_offsets}, options, context);
  });
}

TEST(Memory, AGroupedLayerAllocatesNothingAfterTheFirstCall) {
  Context context({.threads = 2});
  context.impl().region_flops = 0;
  nn::GroupedQueryAttention layer({.embed_dim = 24,
      .num_heads = 4,
      .num_kv_heads = 2,
      .qk_norm = nn::QkNorm::kHead,
      .rotary = RotaryOptions{},
      .causal = true});
  const Tensor<float> x = random_tensor({2, 300, 24}, 1), dy = random_tensor({2, 300, 24}, 2);
  Tensor<float> y(x.sizes()), dx(x.sizes());
  nn::Saved saved;
  expect_no_allocation_after_the_first(context, [&] {
    layer.forward_into(x, y, {.positions = {.offset = 3}, .context = &context}, &saved);
    layer.backward_into(dy, saved, dx, context);
  });
  expect_no_allocation_after_the_first(context, [&] { layer.forward_into(x, y, {.context = &context}, nullptr); });
  KVCache cache({.num_kv_heads = 2, .head_dim = 6, .sequences = 2, .capacity = 2000});
  nn::StepMemory memory;
  expect_no_allocation_after_the_first(context, [&] { layer.step(x, y, cache, memory, {}, context); });
}

/// One layer of each name, forward and backward, after its parameters went through a file's names.
std::vector<double> of_layer(std::string_view name, nn::LayerConfig config, bool bf16) {
  TwoThreads two;
  config.embed_dim = 8, config.length = 5;
  const std::unique_ptr<nn::Layer> made = nn::make_layer(name, config);
  const std::unique_ptr<nn::Layer> layer = nn::load_layer(name, made->state_dict(), config);
  const Tensor<float> x = random_tensor({2, 5, 8}, 1);
  if (bf16) {
    const Tensor<BFloat16> half = test::random_bf16({2, 5, 8}, 1);
    nn::Bf16Saved saved;
    const Tensor<BFloat16> y = layer->forward(half, {.context = &two.context}, &saved);
    return numbers_of(std::as_bytes(y.span()), std::as_bytes(layer->backward(half, saved, two).span()));
  }
  nn::Saved saved;
  Tensor<float> weights({2, 2, 5, 5});
  layer->train();
  nn::ForwardOptions options{.seed = 3, .context = &two.context};
  if (name != "average" && name != "fixed-weights") options.weights = &weights;
  const Tensor<float> y = layer->forward(x, options, &saved);
  const Tensor<float> dx = layer->backward(y, saved, two);
  return numbers_of(y.span(), dx.span(), layer->gradients().entries().empty() ? weights.span() : y.span());
}

TEST(Memory, OutInLayersIsBadAlloc) {
  const nn::LayerConfig grouped{
      .num_heads = 4, .num_kv_heads = 2, .qk_norm = nn::QkNorm::kHead, .rotary = RotaryOptions{}, .causal = true};
  for (const std::string_view name : nn::layer_names()) {
    SCOPED_TRACE(name);
    expect_only_bad_alloc_of(
        {{"forward and backward", [&] {
            return of_layer(
                name, name == "grouped-query" ? grouped : nn::LayerConfig{.num_heads = name == "mha" ? 2 : 0}, false);
          }}});
  }
  expect_only_bad_alloc_of({
      {"bf16", [&] { return of_layer("grouped-query", grouped, true); }},
      {"latent",
          [] {
            TwoThreads two;
            std::vector<double> all;
            for (const nn::LatentAttentionConfig& config : test::latent_configs(8)) {
              nn::MultiHeadLatentAttention layer(config);
              const Tensor<float> x = random_tensor({2, 5, 8}, 1);
              Tensor<float> y(x.sizes()), dx(x.sizes()), next(x.sizes());
              nn::LatentSaved saved;
              layer.forward(x, y, saved, {}, two);
              layer.backward(x, saved, dx, two);
              KVCache cache(layer.cache_config({.sequences = 2, .capacity = 9}), two);
              nn::LatentStepMemory memory;
              layer.step(x, next, cache, memory, {}, {}, two);
              all = numbers_of(all, y.span(), dx.span(), next.span());
            }
            return all;
          }},
      {"steps",
          [&] {
            TwoThreads two;
            nn::LayerConfig config = grouped;
            config.embed_dim = 8;
            const nn::GroupedQueryAttention layer(config);
            const Tensor<float> x = random_tensor({2, 3, 8}, 1);
            Tensor<float> y(x.sizes());
            KVCache cache({.num_kv_heads = 2,
                              .head_dim = 2,
                              .layout = CacheLayout::kPaged,
                              .sequences = 2,
                              .page_size = 2,
                              .pages = 9},
                two);
            nn::StepMemory memory;
            layer.step(x, y, cache, memory, {}, two);
            layer.step(x, y, cache, memory, {}, two);
            return numbers_of(y.span());
          }},
      {"shards",
          [&] {
            nn::LayerConfig config = grouped;
            config.embed_dim = 8;
            nn::GroupedQueryAttention whole(config);
            nn::GroupedQueryAttention part = nn::shard(whole, 1, 2);
            nn::add_shard_gradients(whole, part, 1, 2);
            nn::merge_shard(whole, part, 1, 2);
            return numbers_of(part.parameters().front().value);
          }},
      {"parts of a block",
          [] {
            TwoThreads two;
            const Tensor<float> x = random_tensor({6, 8}, 1);
            const std::vector<std::int64_t> ids{0, 3, 1, 1, 4, 2};
            Tensor<float> h({6, 8}), y({6, 8}), dx({6, 8});
            nn::Embedding table({.num_embeddings = 5, .embed_dim = 8});
            nn::LayerNorm norm({.embed_dim = 8});
            nn::Linear linear({.in_features = 8, .out_features = 8});
            nn::Mlp mlp({.embed_dim = 8});
            nn::MlpSaved saved;
            table.forward(ids, h, false, two);
            norm.forward(h, y, two);
            linear.forward(y, h, two);
            mlp.forward(h, y, saved, two);
            nn::silu_forward(y, y, two);
            const double loss = nn::cross_entropy(y, ids, dx, two);
            mlp.backward(h, x, dx, saved, two);
            linear.backward(x, dx, h, two);
            norm.backward(x, h, dx, two);
            table.backward(ids, dx, two);
            return numbers_of(y.span(), dx.span(), table.gradients().at("weight").bytes, std::vector{loss});
          }},
      {"a file of other names",
          [] {
            nn::MultiHeadAttention layer({.embed_dim = 8, .num_heads = 2});
            try {
              layer.load_state_dict(test::state_of({{"unknown.weight", {8, 8}}}));
            } catch (const OptionError& error) {
              return numbers_of(std::string_view(error.what()));
            }
            return std::vector<double>{};
          }},
  });
}

}  // namespace
}  // namespace qkv
