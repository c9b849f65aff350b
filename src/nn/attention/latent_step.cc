// Latent attention on a cache: new tokens against all that it holds, absorbed or materialised. Not: whole sequences
// (latent_attention.cc).
#include <algorithm>

#include "core/check.h"
#include "nn/attention/latent_rows.h"
#include "nn/rows/check_rows.h"
#include "qkv/attention.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::inline v0::nn {
namespace {

constexpr const char* kStep = "MultiHeadLatentAttention::step";

/// Rows [M, width] of head h of [M, heads, row].
template <class T>
View<T, 2> head_rows(T* data, Index rows, Index heads, Index row, Index h, Index begin, Index width) {
  return {data + h * row + begin, {rows, width}, {heads * row, 1}};
}

}  // namespace

KVCacheConfig MultiHeadLatentAttention::cache_config(KVCacheConfig cache) const {
  cache.num_kv_heads = 1;
  cache.head_dim = latent_width();
  cache.v_head_dim = config_.kv_lora_rank;
  cache.values_in_keys = true;
  return cache;
}

template <class T>
void MultiHeadLatentAttention::step_of(View<const T, 3> x, View<T, 3> y, KVCache& cache, LatentStepMemoryOf<T>& memory,
                                       const Mask& mask, Form form, Context& context) const {
  const std::span<const Index> sequences = cache.sequences();
  const KVCacheConfig& c = cache.config();
  const auto batch = static_cast<Index>(sequences.size());
  const Index n = x.size(1), heads = config_.num_heads;
  check_call<T>(x, y, "x and y");
  check<ShapeError>(x.size(0) == batch, kStep, "x must be [sequences of the cache, n, E]: got ", x, " for ", batch,
                    " sequences");
  check<OptionError>(c.values_in_keys && c.num_kv_heads == 1 && c.head_dim == latent_width() &&
                         c.v_head_dim == config_.kv_lora_rank && c.storage != CacheStorage::kF64,
                     kStep, "the cache must be made from cache_config(), and not of f64: got num_kv_heads ", c.num_kv_heads,
                     ", head_dim ", c.head_dim, ", v_head_dim ", c.v_head_dim);
  const bool ring = c.layout == CacheLayout::kRing;
  check<OptionError>(!ring || form != Form::kMaterialised, kStep,
                     "a ring is read in the absorbed form alone, since it has no rows of tokens that it overwrote: pass kAuto "
                     "or kAbsorbed");
  memory.positions.resize(sequences.size());
  std::ranges::transform(sequences, memory.positions.begin(), [&cache](Index s) { return cache.length(s); });
  project<T>(x, memory.rows, {.offsets = memory.positions}, context);
  cache.append(columns_of(std::as_const(memory.rows.latent), 1, 0, latent_width()), {});
  resize(memory.rows.attended, {batch, n, heads * config_.v_head_dim});
  Index longest = 0;
  for (const Index s : sequences) longest = std::max(longest, cache.length(s));
  // Operations of a head: absorbed, queries are mapped and attend wide keys; materialised, keys are mapped.
  const auto count = [](Index a, Index b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double map = count(config_.kv_lora_rank, kv_width());
  const double absorbed = static_cast<double>(n) * map + count(n * longest, latent_width() + config_.kv_lora_rank);
  const double materialised = static_cast<double>(longest) * map + count(n * longest, q_width() + config_.v_head_dim);
  if (form == Form::kAuto) form = ring || absorbed <= materialised ? Form::kAbsorbed : Form::kMaterialised;
  if (form == Form::kAbsorbed) {
    attend_absorbed<T>(cache, memory.rows.attended, memory, mask, context);
  } else {
    attend_materialised<T>(cache, memory.rows.attended, memory, mask, context);
  }
  linear_forward(View<const T, 3>(memory.rows.attended), weights_of<T>(o_.weight(), o_.bias()), y, context);
}

template <class T>
void MultiHeadLatentAttention::attend_absorbed(const KVCache& cache, View<T, 3> attended, LatentStepMemoryOf<T>& memory,
                                               const Mask& mask, Context& context) const {
  const Index batch = attended.size(0), n = attended.size(1), heads = config_.num_heads, rank = config_.kv_lora_rank;
  const Index rows = batch * n, turned = config_.qk_rope_head_dim, plain = config_.qk_nope_head_dim;
  resize(memory.absorbed, {batch, n, heads, latent_width()});
  resize(memory.latent_out, {batch, n, heads, rank});
  const auto weights_of_head = [&](Index h, Index begin, Index count) {  // rows of W_kvb [H (Dn + Dv), R]
    const View<const float, 2> some(kv_b_.weight().data() + (h * kv_width() + begin) * rank, {count, rank});
    if constexpr (std::is_same_v<T, float>) return LinearWeights<T>{some};
    if constexpr (!std::is_same_v<T, float>) return LinearWeights<T>{{}, nullptr, some};
  };
  for (Index h = 0; h < heads; ++h) {  // W_k^T q_n
    linear_backward(View<const T, 2>(), head_rows(std::as_const(memory.rows.q).data(), rows, heads, q_width(), h, 0, plain),
                    weights_of_head(h, 0, plain), head_rows(memory.absorbed.data(), rows, heads, latent_width(), h, 0, rank),
                    {}, context);
  }
  for (Index row = 0; row < rows * heads; ++row) {
    std::copy_n(memory.rows.q.data() + row * q_width() + plain, turned, memory.absorbed.data() + row * latent_width() + rank);
  }
  const auto heads_of = [&](auto* data, Index width) {  // [B, H, n, width] of [B, n, H, width]
    return View<std::remove_pointer_t<decltype(data)>, 4>(data, {batch, heads, n, width},
                                                          {n * heads * width, width, heads * width, 1});
  };
  const View<const T, 4> q = heads_of(std::as_const(memory.absorbed).data(), latent_width());
  const View<T, 4> out = heads_of(memory.latent_out.data(), rank);
  if (!mask.keeps_everything() || cache.config().layout == CacheLayout::kRing) {  // what each query sees goes by its position
    const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight) & mask, .scale = scale()};
    attention_forward(q, cache.key_value(), {.out = out}, options, context);
  } else {  // a token at a time, whose heads become queries: they see the same keys, and tiles share these among many of them
    KeyValue::Parts parts = cache.key_value().parts();
    const std::span<const Index> sequences = cache.sequences();
    memory.lengths.resize(sequences.empty() ? 0 : static_cast<std::size_t>(sequences.back()) + 1);
    parts.lengths = memory.lengths.data();
    for (Index t = 0; t < n; ++t) {
      parts.max_length = 0;
      for (const Index s : sequences) {
        const Index seen = cache.length(s) - (n - 1 - t);
        memory.lengths[static_cast<std::size_t>(s)] = seen;
        parts.max_length = std::max(parts.max_length, seen);
      }
      attention_forward(q.sliced(2, t, t + 1).transposed(1, 2), KeyValue(parts),
                        {.out = out.sliced(2, t, t + 1).transposed(1, 2)}, {.scale = scale()}, context);
    }
  }
  for (Index h = 0; h < heads; ++h) {  // W_v sum w c
    linear_forward(head_rows(std::as_const(memory.latent_out).data(), rows, heads, rank, h, 0, rank),
                   weights_of_head(h, plain, config_.v_head_dim),
                   head_rows(attended.data(), rows, heads, config_.v_head_dim, h, 0, config_.v_head_dim), context);
  }
}

template <class T>
void MultiHeadLatentAttention::attend_materialised(const KVCache& cache, View<T, 3> attended, LatentStepMemoryOf<T>& memory,
                                                   const Mask& mask, Context& context) const {
  const std::span<const Index> sequences = cache.sequences();
  const Index batch = attended.size(0), heads = config_.num_heads;
  memory.lengths.resize(sequences.size());
  std::ranges::transform(sequences, memory.lengths.begin(), [&cache](Index s) { return cache.length(s); });
  const Index longest = batch == 0 ? 0 : *std::ranges::max_element(memory.lengths);
  resize(memory.held, {batch, longest, latent_width()});
  for (Index b = 0; b < batch; ++b) {
    const auto at = static_cast<std::size_t>(b);
    const Index numbers = memory.lengths[at] * latent_width();
    T* rows = memory.held.data() + b * longest * latent_width();
    const auto read = [&](float* to) {
      cache.read(sequences[at], 0, View<float, 3>(to, {1, memory.lengths[at], latent_width()}), View<float, 3>());
    };
    if constexpr (std::is_same_v<T, float>) {
      read(rows);
    } else {
      resize(memory.read, {longest, latent_width()});
      read(memory.read.data());
      std::transform(memory.read.data(), memory.read.data() + numbers, rows, [](float x) { return static_cast<T>(x); });
    }
    std::fill(rows + numbers, rows + longest * latent_width(), T{});
  }
  materialise<T>(memory.held, memory.kv, memory.k, context);
  const KeyValue kv = KeyValue::contiguous(
      columns_of(std::as_const(memory.k), heads, 0, q_width()),
      columns_of(std::as_const(memory.kv), heads, config_.qk_nope_head_dim, config_.v_head_dim), memory.lengths);
  const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight) & mask, .scale = scale()};
  attention_forward(columns_of(std::as_const(memory.rows.q), heads, 0, q_width()), kv,
                    {.out = columns_of(memory.rows.attended, heads, 0, config_.v_head_dim)}, options, context);
}

#define QKV_DEFINE(T)                                                                                                  \
  void MultiHeadLatentAttention::step(View<const T, 3> x, View<T, 3> y, KVCache& cache, LatentStepMemoryOf<T>& memory, \
                                      const Mask& mask, Form form, Context& context) const {                           \
    step_of(x, y, cache, memory, mask, form, context);                                                                 \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::nn
