// Latent attention: forward, materialised; a step over a cache, absorbed or
// materialised; backward.
#pragma once

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "nn/parameters/tensor_use.h"
#include "nn/products/linear_products.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/norm.h"
#include "qkv/attention.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::inline v0::nn {

/// Columns [begin, begin + width) of each of `heads` heads of rows [B, T, E], as [B, heads, T, width].
template <class Rows> auto columns_of(Rows& rows, Index heads, Index begin, Index width) {
  const Index batch = rows.size(0), length = rows.size(1), row = rows.size(2);
  return View<std::remove_pointer_t<decltype(rows.data())>, 4>(
      rows.data() + begin, {batch, heads, length, width}, {length * row, row / heads, row, 1});
}

/// The first `width` numbers of every row.
template <class T> View<T, 2> first_columns(const View<T, 2>& rows, Index width) {
  return {rows.data(), {rows.size(0), width}, {rows.stride(0), 1}};
}

/// Rows [M, width] of head h of [M, heads, row].
template <class T>
View<T, 2> head_rows(T* data, Index rows, Index heads, Index row, Index h, Index begin, Index width) {
  return {data + h * row + begin, {rows, width}, {heads * row, 1}};
}

struct MultiHeadLatentAttention::Run {
  static constexpr const char* kType = "MultiHeadLatentAttention";
  static constexpr const char* kStep = "MultiHeadLatentAttention::step";

  const MultiHeadLatentAttention& l;

  void check_call(View<const float, 3> x, View<const float, 3> y, const char* what) const {
    check<ShapeError>(x.size(2) == l.config_.embed_dim && y.sizes() == x.sizes(), kType, what, " must be [B, T, ",
        l.config_.embed_dim, "], both: got ", x, " and ", y);
    check_rows(kType, what, x, what, y);
  }

  NormWeights norm_of(const Norm& norm) const { return {.weight = norm.weight.data(), .eps = l.config_.norm_eps}; }

  /// q, c | r of x: saved.q and saved.latent.
  void project(View<const float, 3> x, LatentSaved& saved, const RotaryPositions& positions, Context& context) const {
    const Index batch = x.size(0), length = x.size(1), rank = l.config_.kv_lora_rank,
                turned = l.config_.qk_rope_head_dim;
    resize(saved.x, {batch, length, l.config_.embed_dim});
    copy<float>(x, saved.x);
    resize(saved.q, {batch, length, l.config_.num_heads * l.q_width()});
    if (!l.low_rank()) {
      l.q_.forward(as_rows(std::as_const(saved.x)), as_rows(saved.q), context);
    } else {
      resize(saved.q_a, {batch, length, l.config_.q_lora_rank});
      resize(saved.q_a_norm, saved.q_a.sizes());
      l.q_a_->forward(as_rows(std::as_const(saved.x)), as_rows(saved.q_a), context);
      norm_forward<float>(columns_of(std::as_const(saved.q_a), 1, 0, l.config_.q_lora_rank), norm_of(l.q_norm_),
          columns_of(saved.q_a_norm, 1, 0, l.config_.q_lora_rank), context);
      l.q_.forward(as_rows(std::as_const(saved.q_a_norm)), as_rows(saved.q), context);
    }
    const View<float, 4> q = columns_of(saved.q, l.config_.num_heads, l.config_.qk_nope_head_dim, turned);
    l.rotary_.forward(q, q, positions, context);
    resize(saved.kv_a, {batch, length, l.latent_width()});
    resize(saved.latent, saved.kv_a.sizes());
    l.kv_a_.forward(as_rows(std::as_const(saved.x)), as_rows(saved.kv_a), context);
    norm_forward<float>(columns_of(std::as_const(saved.kv_a), 1, 0, rank), norm_of(l.kv_norm_),
        columns_of(saved.latent, 1, 0, rank), context);
    l.rotary_.forward(columns_of(std::as_const(saved.kv_a), 1, rank, turned), columns_of(saved.latent, 1, rank, turned),
        positions, context);
  }

  /// k_n | v and k of c | r [B, T, R + Dr].
  void materialise(View<const float, 3> latent, Tensor<float>& kv, Tensor<float>& k, Context& context) const {
    const Index batch = latent.size(0), length = latent.size(1), heads = l.config_.num_heads;
    resize(kv, {batch, length, heads * l.kv_width()});
    resize(k, {batch, length, heads * l.q_width()});
    const View<const float, 2> c(latent.data(), {batch * length, l.config_.kv_lora_rank}, {latent.stride(1), 1});
    l.kv_b_.forward(c, as_rows(kv), context);
    for (Index row = 0; row < batch * length; ++row) {
      const float* turned = latent.data() + row * l.latent_width() + l.config_.kv_lora_rank;
      for (Index h = 0; h < heads; ++h) {
        float* to = k.data() + (row * heads + h) * l.q_width();
        std::copy_n(kv.data() + (row * heads + h) * l.kv_width(), l.config_.qk_nope_head_dim, to);
        std::copy_n(turned, l.config_.qk_rope_head_dim, to + l.config_.qk_nope_head_dim);
      }
    }
  }

  void forward(View<const float, 3> x, View<float, 3> y, LatentSaved& saved, const LatentOptions& options,
      Context& context) const {
    check_call(x, y, "x and y");
    const Index batch = x.size(0), length = x.size(1), heads = l.config_.num_heads;
    project(x, saved, options.positions, context);
    materialise(saved.latent, saved.kv, saved.k, context);
    resize(saved.attended, {batch, length, heads * l.config_.v_head_dim});
    resize(saved.lse, {batch, heads, length});
    saved.positions = options.positions;
    saved.mask = options.causal.value_or(l.config_.causal) ? Mask::causal() & options.mask : options.mask;
    attention_forward(columns_of(std::as_const(saved.q), heads, 0, l.q_width()),
        columns_of(std::as_const(saved.k), heads, 0, l.q_width()),
        columns_of(std::as_const(saved.kv), heads, l.config_.qk_nope_head_dim, l.config_.v_head_dim),
        {.out = columns_of(saved.attended, heads, 0, l.config_.v_head_dim), .lse = saved.lse},
        {.mask = saved.mask, .scale = l.scale()}, context);
    linear_forward(View<const float, 3>(saved.attended), weights_of<float>(l.o_.weight(), l.o_.bias()), y, context);
  }

  void step(View<const float, 3> x, View<float, 3> y, KVCache& cache, LatentStepMemory& memory, const Mask& mask,
      Form form, Context& context) const {
    const std::span<const Index> sequences = cache.sequences();
    const KVCacheConfig& c = cache.config();
    const auto batch = static_cast<Index>(sequences.size());
    const Index n = x.size(1), heads = l.config_.num_heads;
    check_call(x, y, "x and y");
    check<ShapeError>(
        x.size(0) == batch, kStep, "x must be [sequences of the cache, n, E]: got ", x, " for ", batch, " sequences");
    check<OptionError>(c.values_in_keys && c.num_kv_heads == 1 && c.head_dim == l.latent_width() &&
                           c.v_head_dim == l.config_.kv_lora_rank && c.storage != CacheStorage::kF64,
        kStep, "the cache must be made from cache_config(), and not of f64: got num_kv_heads ", c.num_kv_heads,
        ", head_dim ", c.head_dim, ", v_head_dim ", c.v_head_dim);
    const bool ring = c.layout == CacheLayout::kRing;
    check<OptionError>(!ring || form != Form::kMaterialised, kStep,
        "a ring is read in the absorbed form alone, since it has no rows of tokens that it overwrote: pass kAuto or "
        "kAbsorbed");
    memory.positions.resize(sequences.size());
    std::ranges::transform(sequences, memory.positions.begin(), [&cache](Index s) { return cache.length(s); });
    project(x, memory.rows, {.offsets = memory.positions}, context);
    cache.append(columns_of(std::as_const(memory.rows.latent), 1, 0, l.latent_width()), {});
    resize(memory.rows.attended, {batch, n, heads * l.config_.v_head_dim});
    Index longest = 0;
    for (const Index s : sequences) longest = std::max(longest, cache.length(s));
    // Operations of a head: absorbed, queries are mapped and attend wide keys; materialised, keys are mapped.
    const auto count = [](Index a, Index b) { return static_cast<double>(a) * static_cast<double>(b); };
    const double map = count(l.config_.kv_lora_rank, l.kv_width());
    const double absorbed =
        static_cast<double>(n) * map + count(n * longest, l.latent_width() + l.config_.kv_lora_rank);
    const double materialised =
        static_cast<double>(longest) * map + count(n * longest, l.q_width() + l.config_.v_head_dim);
    if (form == Form::kAuto) form = ring || absorbed <= materialised ? Form::kAbsorbed : Form::kMaterialised;
    try {
      if (form == Form::kAbsorbed) {
        attend_absorbed(cache, memory.rows.attended, memory, mask, context);
      } else {
        attend_materialised(cache, memory.rows.attended, memory, mask, context);
      }
    } catch (...) {  // what a ring overwrote is lost
      for (std::size_t b = 0; !ring && b < sequences.size(); ++b) cache.truncate(sequences[b], memory.positions[b]);
      throw;
    }
    linear_forward(
        View<const float, 3>(memory.rows.attended), weights_of<float>(l.o_.weight(), l.o_.bias()), y, context);
  }

  void attend_absorbed(const KVCache& cache, View<float, 3> attended, LatentStepMemory& memory, const Mask& mask,
      Context& context) const {
    const Index batch = attended.size(0), n = attended.size(1), heads = l.config_.num_heads,
                rank = l.config_.kv_lora_rank;
    const Index rows = batch * n, turned = l.config_.qk_rope_head_dim, plain = l.config_.qk_nope_head_dim;
    resize(memory.absorbed, {batch, n, heads, l.latent_width()});
    resize(memory.latent_out, {batch, n, heads, rank});
    const auto weights_of_head = [&](Index h, Index begin, Index count) {  // rows of W_kvb [H (Dn + Dv), R]
      const View<const float, 2> some(l.kv_b_.weight().data() + (h * l.kv_width() + begin) * rank, {count, rank});
      return LinearWeights<float>{some};
    };
    for (Index h = 0; h < heads; ++h) {  // W_k^T q_n
      linear_backward(View<const float, 2>(),
          head_rows(std::as_const(memory.rows.q).data(), rows, heads, l.q_width(), h, 0, plain),
          weights_of_head(h, 0, plain), head_rows(memory.absorbed.data(), rows, heads, l.latent_width(), h, 0, rank),
          {}, context);
    }
    for (Index row = 0; row < rows * heads; ++row) {
      std::copy_n(memory.rows.q.data() + row * l.q_width() + plain, turned,
          memory.absorbed.data() + row * l.latent_width() + rank);
    }
    const auto heads_of = [&](auto* data, Index width) {  // [B, H, n, width] of [B, n, H, width]
      return View<std::remove_pointer_t<decltype(data)>, 4>(
          data, {batch, heads, n, width}, {n * heads * width, width, heads * width, 1});
    };
    const View<const float, 4> q = heads_of(std::as_const(memory.absorbed).data(), l.latent_width());
    const View<float, 4> out = heads_of(memory.latent_out.data(), rank);
    if (!mask.keeps_everything() ||
        cache.config().layout == CacheLayout::kRing) {  // what each query sees goes by its position
      const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight) & mask, .scale = l.scale()};
      attention_forward(q, cache.key_value(), {.out = out}, options, context);
    } else {  // a token at a time, whose heads become queries: they see the same keys, and tiles share these among many
              // of them
      KeyValue::Parts parts = cache.key_value().parts();
      const std::span<const Index> sequences = cache.sequences();
      memory.lengths.resize(sequences.empty() ? 0 : static_cast<std::size_t>(sequences.back()) + 1);
      parts.lengths = memory.lengths.data();
      for (Index t = 0; t < n; ++t) {
        parts.max_length = 0;
        for (const Index s : sequences) {
          const Index visible = cache.length(s) - (n - 1 - t);
          memory.lengths[static_cast<std::size_t>(s)] = visible;
          parts.max_length = std::max(parts.max_length, visible);
        }
        attention_forward(q.sliced(2, t, t + 1).transposed(1, 2), KeyValue(parts),
            {.out = out.sliced(2, t, t + 1).transposed(1, 2)}, {.scale = l.scale()}, context);
      }
    }
    for (Index h = 0; h < heads; ++h) {  // W_v sum w c
      linear_forward(head_rows(std::as_const(memory.latent_out).data(), rows, heads, rank, h, 0, rank),
          weights_of_head(h, plain, l.config_.v_head_dim),
          head_rows(attended.data(), rows, heads, l.config_.v_head_dim, h, 0, l.config_.v_head_dim), context);
    }
  }

  void attend_materialised(const KVCache& cache, View<float, 3> attended, LatentStepMemory& memory, const Mask& mask,
      Context& context) const {
    const std::span<const Index> sequences = cache.sequences();
    const Index batch = attended.size(0), heads = l.config_.num_heads;
    memory.lengths.resize(sequences.size());
    std::ranges::transform(sequences, memory.lengths.begin(), [&cache](Index s) { return cache.length(s); });
    const Index longest = batch == 0 ? 0 : *std::max_element(memory.lengths.begin(), memory.lengths.end());
    resize(memory.held, {batch, longest, l.latent_width()});
    for (Index b = 0; b < batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const Index numbers = memory.lengths[at] * l.latent_width();
      float* rows = memory.held.data() + b * longest * l.latent_width();
      cache.read(sequences[at], 0, View<float, 3>(rows, {1, memory.lengths[at], l.latent_width()}), View<float, 3>());
      std::fill(rows + numbers, rows + longest * l.latent_width(), 0.0F);
    }
    materialise(memory.held, memory.kv, memory.k, context);
    const KeyValue kv = KeyValue::contiguous(columns_of(std::as_const(memory.k), heads, 0, l.q_width()),
        columns_of(std::as_const(memory.kv), heads, l.config_.qk_nope_head_dim, l.config_.v_head_dim), memory.lengths);
    const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight) & mask, .scale = l.scale()};
    attention_forward(columns_of(std::as_const(memory.rows.q), heads, 0, l.q_width()), kv,
        {.out = columns_of(memory.rows.attended, heads, 0, l.config_.v_head_dim)}, options, context);
  }
};

struct MultiHeadLatentAttention::Back {
  static constexpr const char* kType = Run::kType;

  MultiHeadLatentAttention& l;
  Run run{l};

  void backward(View<const float, 3> dy, LatentSaved& saved, View<float, 3> dx, Context& context) {
    const Index heads = l.config_.num_heads, rank = l.config_.kv_lora_rank, turned = l.config_.qk_rope_head_dim;
    check<OptionError>(saved.x.rank() == 3, kType, "saved must come from this layer's forward: got x ", saved.x);
    run.check_call(dy, saved.x, "dy and x of forward");
    const auto is = [&](const Tensor<float>& x, Index width) {
      return x.rank() == 3 && x.size(0) == dy.size(0) && x.size(1) == dy.size(1) && x.size(2) == width;
    };
    const bool has_lse = saved.lse.rank() == 3 && saved.lse.size(0) == dy.size(0) && saved.lse.size(1) == heads &&
                         saved.lse.size(2) == dy.size(1);
    const bool has_ranks =
        !l.low_rank() || (is(saved.q_a, l.config_.q_lora_rank) && is(saved.q_a_norm, l.config_.q_lora_rank));
    check<OptionError>(has_lse && has_ranks && is(saved.q, heads * l.q_width()) && is(saved.k, heads * l.q_width()) &&
                           is(saved.kv, heads * l.kv_width()) && is(saved.kv_a, l.latent_width()) &&
                           is(saved.latent, l.latent_width()) && is(saved.attended, heads * l.config_.v_head_dim),
        kType, "saved must come from this layer's forward: got q ", saved.q, ", kv ", saved.kv, ", latent ",
        saved.latent, ", lse ", saved.lse);
    check<ShapeError>(
        dx.is_null() || dx.sizes() == dy.sizes(), kType, "dx must have the sizes of dy: got ", dx, " for ", dy);
    check_rows(kType, "dx", dx);
    for (auto [to, like] : {std::pair{&saved.dattended, &saved.attended}, std::pair{&saved.dq, &saved.q},
             std::pair{&saved.dk, &saved.k}, std::pair{&saved.dkv, &saved.kv}, std::pair{&saved.dlatent, &saved.latent},
             std::pair{&saved.dx, &saved.x}}) {
      resize(*to, like->sizes());
    }
    linear_backward(View<const float, 3>(saved.attended), dy, weights_of<float>(l.o_.weight(), {}),
        View<float, 3>(saved.dattended), l.o_.own_gradients(), context);
    attention_backward(columns_of(std::as_const(saved.q), heads, 0, l.q_width()),
        columns_of(std::as_const(saved.k), heads, 0, l.q_width()),
        columns_of(std::as_const(saved.kv), heads, l.config_.qk_nope_head_dim, l.config_.v_head_dim),
        columns_of(std::as_const(saved.attended), heads, 0, l.config_.v_head_dim), saved.lse,
        columns_of(std::as_const(saved.dattended), heads, 0, l.config_.v_head_dim),
        {.dq = columns_of(saved.dq, heads, 0, l.q_width()),
            .dk = columns_of(saved.dk, heads, 0, l.q_width()),
            .dv = columns_of(saved.dkv, heads, l.config_.qk_nope_head_dim, l.config_.v_head_dim)},
        {.mask = saved.mask, .scale = l.scale()}, context);
    // k = [k_n | r]: r is shared by the heads, whose gradients are added in their order.
    for (Index row = 0; row < saved.x.size(0) * saved.x.size(1); ++row) {
      const float* dk = saved.dk.data() + row * heads * l.q_width();
      for (Index h = 0; h < heads; ++h) {
        std::copy_n(
            dk + h * l.q_width(), l.config_.qk_nope_head_dim, saved.dkv.data() + (row * heads + h) * l.kv_width());
      }
      for (Index d = 0; d < turned; ++d) {
        float sum = 0;
        for (Index h = 0; h < heads; ++h) sum += dk[h * l.q_width() + l.config_.qk_nope_head_dim + d];
        saved.dlatent.data()[row * l.latent_width() + rank + d] = sum;
      }
    }
    const auto c_of = [&](auto& latent) { return first_columns(as_rows(latent), rank); };
    l.kv_b_.backward(
        c_of(std::as_const(saved.latent)), as_rows(std::as_const(saved.dkv)), c_of(saved.dlatent), context);
    const View<float, 4> dc = columns_of(saved.dlatent, 1, 0, rank), dr = columns_of(saved.dlatent, 1, rank, turned);
    l.rotary_.backward(dr, dr, saved.positions, context);
    norm_backward<float>(columns_of(std::as_const(saved.kv_a), 1, 0, rank), dc, run.norm_of(l.kv_norm_), dc,
        l.kv_norm_.gradient.data(), nullptr, saved.dnorm, context);
    const View<const float, 2> x = as_rows(std::as_const(saved.x));
    const View<float, 2> rows = as_rows(saved.dx);
    l.kv_a_.backward(x, as_rows(std::as_const(saved.dlatent)), rows, context);
    if (!dx.is_null()) copy<float>(saved.dx, dx);

    const View<float, 4> dq = columns_of(saved.dq, heads, l.config_.qk_nope_head_dim, turned);
    l.rotary_.backward(dq, dq, saved.positions, context);
    if (!l.low_rank()) {
      l.q_.backward(x, as_rows(std::as_const(saved.dq)), rows, context);
    } else {
      resize(saved.dq_a, saved.q_a.sizes());
      l.q_.backward(
          as_rows(std::as_const(saved.q_a_norm)), as_rows(std::as_const(saved.dq)), as_rows(saved.dq_a), context);
      const View<float, 4> dq_a = columns_of(saved.dq_a, 1, 0, l.config_.q_lora_rank);
      norm_backward<float>(columns_of(std::as_const(saved.q_a), 1, 0, l.config_.q_lora_rank), dq_a,
          run.norm_of(l.q_norm_), dq_a, l.q_norm_.gradient.data(), nullptr, saved.dnorm, context);
      l.q_a_->backward(x, as_rows(std::as_const(saved.dq_a)), rows, context);
    }
    if (dx.is_null()) return;
    for (Index b = 0; b < dx.size(0); ++b) {
      for (Index t = 0; t < dx.size(1); ++t) {
        const float* more = saved.dx.data() + (b * dx.size(1) + t) * dx.size(2);
        float* to = &dx(b, t, 0);
        for (Index e = 0; e < dx.size(2); ++e) to[e] = to[e] + more[e];
      }
    }
  }
};

}  // namespace qkv::inline v0::nn
