// Cases of the forms around attention: decoding on caches, stored in several ways, whose bytes are what must be read; a
// prompt's chunk on pages, beside plain tensors; ragged batches, beside their sequences one by one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/problem.h"
#include "core/random.h"
#include "qkv/kv_cache.h"
#include "qkv/varlen.h"

namespace qkv::cli {
namespace {

constexpr double kWithinPlain = 1.1;  // of what the pages, or the sequences one by one, cost without them
constexpr Index kPage = 64;

struct Stored {
  const char* name;
  CacheStorage storage;
  CacheLayout layout;
};

/// Caches of the same keys and values, of `memory_bytes` together: no cache of the machine holds the next one.
struct CacheProblem {
  AttentionProblem<float> tensors;
  std::vector<KVCache> caches;
  std::size_t turn = 0;

  CacheProblem(const AttentionShape& shape, const Stored& stored, double memory_bytes) : tensors(shape, false) {
    const KVCacheConfig config{.num_kv_heads = shape.kv_heads(),
        .head_dim = shape.head_dim,
        .storage = stored.storage,
        .layout = stored.layout,
        .sequences = shape.batch,
        .capacity = shape.kv_len,
        .page_size = kPage,
        .pages = stored.layout == CacheLayout::kPaged ? shape.batch * (shape.kv_len / kPage + 1) : 0};
    do {
      caches.emplace_back(config);
      caches.back().append(tensors.k(), tensors.v());
    } while (bytes() * static_cast<double>(caches.size()) < memory_bytes);
    // The keys and values that the textbook reads.
    for (Index b = 0; b < shape.batch; ++b) {
      const auto own = [b](Tensor<float>& rows) {  // [Hkv, Tk, D]
        const View<float, 4> all = rows.view<4>();
        return View<float, 3>(&all(b, 0, 0, 0), {all.size(1), all.size(2), all.size(3)});
      };
      caches[0].read(b, 0, own(tensors.keys[0]), own(tensors.values[0]));
    }
  }

  double bytes() const { return static_cast<double>(caches[0].bytes()); }
  void forward(Context& context) {
    turn = (turn + 1) % caches.size();
    attention_forward(
        tensors.q, caches[turn].key_value(), {.out = tensors.out, .lse = tensors.lse}, tensors.options, context);
  }
};

/// One new token reads the cache; a prompt's chunk computes beside plain tensors.
BenchCase cache_case(const std::string& name, const AttentionShape& shape, const Stored& stored) {
  const bool reads = shape.q_len == 1;
  const auto prepare = [shape, stored, reads](Context& context) {
    const auto p = std::make_shared<CacheProblem>(shape, stored, reads ? kMemoryBytes : 0);
    Prepared prepared{.run = [p, &context] { p->forward(context); },
        .judge = [p] { return p->tensors.judge(); },
        .flops = shape.forward_flops(),
        .bytes = reads ? p->bytes() : 0,
        .kernel = kernel_text(attention_plan(p->tensors.q, p->caches[0].key_value(), p->tensors.options, context))};
    if (!reads) prepared.plain = [p, &context] { p->tensors.forward(context); };
    return prepared;
  };
  return {.name = fmt::format("cache-{}-s{}", name, shape.kv_len),
      .group = "caches",
      .shape = shape.text(),
      .limit = reads ? Limit::kFma : Limit::kPlain,
      .goal = reads ? 0 : 1 / kWithinPlain,
      .prepare = prepare};
}

/// Packed sequences of 64, 128, ..., 1,024 tokens, causal, in one call and one call each.
struct RaggedProblem {
  static constexpr Index kHeads = 2, kDim = 64, kSequences = 16;
  /// Of either way to compute: [total, H, D], lse [total, H].
  struct Results {
    Tensor<float> out, dq, dk, dv, lse;
  };
  std::vector<Index> offsets{0};
  Tensor<float> q, k, v, dout;
  Results packed, alone;
  AttentionOptions options{.mask = Mask::causal()};

  RaggedProblem() {
    for (Index b = 0; b < kSequences; ++b) offsets.push_back(offsets.back() + 64 * (b + 1));
    Random random(23);
    for (Tensor<float>* t : {&q, &k, &v, &dout}) {
      *t = Tensor<float>({offsets.back(), kHeads, kDim});
      for (float& x : t->span()) x = 2 * random.uniform_f32() - 1;
    }
    for (Results* r : {&packed, &alone}) {
      for (Tensor<float>* t : {&r->out, &r->dq, &r->dk, &r->dv}) *t = Tensor<float>(q.sizes());
      r->lse = Tensor<float>({offsets.back(), kHeads});
    }
  }
  RaggedOffsets both() const { return {offsets, offsets}; }

  void run(bool backward, Context& context) {
    Results& r = packed;
    if (!backward) return attention_varlen_forward(q, k, v, {.out = r.out, .lse = r.lse}, both(), options, context);
    attention_varlen_backward(
        q, k, v, r.out, r.lse, dout, {.dq = r.dq, .dk = r.dk, .dv = r.dv}, both(), options, context);
  }
  void one_by_one(bool backward, Context& context) {
    for (std::size_t b = 0; b < kSequences; ++b) {
      const Index first = offsets[b], length = offsets[b + 1] - first;
      const auto in = [&](const Tensor<float>& x) {  // [1, H, T, D]
        return View<const float, 4>(
            x.data() + first * kHeads * kDim, {1, kHeads, length, kDim}, {0, kDim, kHeads * kDim, 1});
      };
      const auto out = [&](Tensor<float>& x) {
        return View<float, 4>(x.data() + first * kHeads * kDim, {1, kHeads, length, kDim}, {0, kDim, kHeads * kDim, 1});
      };
      const View<float, 3> lse(alone.lse.data() + first * kHeads, {1, kHeads, length}, {0, 1, kHeads});
      if (!backward) {
        attention_forward(in(q), in(k), in(v), {.out = out(alone.out), .lse = lse}, options, context);
      } else {
        attention_backward(in(q), in(k), in(v), in(alone.out), lse, in(dout),
            {.dq = out(alone.dq), .dk = out(alone.dk), .dv = out(alone.dv)}, options, context);
      }
    }
  }
  /// 0 where both are bit-identical, as they must be; otherwise infinite.
  Judgement judge(bool backward, Context& context) {
    one_by_one(backward, context);
    bool same = true;
    for (const auto member : {&Results::out, &Results::dq, &Results::dk, &Results::dv, &Results::lse})
      same &= std::ranges::equal((packed.*member).span(), (alone.*member).span());
    return {same ? 0.0 : std::numeric_limits<double>::infinity(), 0};
  }
};

BenchCase ragged_case(bool backward) {
  using P = RaggedProblem;
  const auto prepare = [backward](Context& context) {
    const auto p = std::make_shared<P>();
    const AttentionPlan plan = attention_varlen_plan(p->q, p->k, p->v, p->both(), p->options, context);
    if (backward) p->run(false, context), p->one_by_one(false, context);
    return Prepared{.run = [p, backward, &context] { p->run(backward, context); },
        .judge = [p, backward, &context] { return p->judge(backward, context); },
        .plain = [p, backward, &context] { p->one_by_one(backward, context); },
        .flops = plan.forward_flops * (backward ? 2.5 : 1),
        .kernel = kernel_text(plan)};
  };
  return {.name = fmt::format("ragged-{}-f32-d{}-b{}", backward ? "bwd" : "fwd", P::kDim, P::kSequences),
      .group = "ragged",
      .shape = fmt::format("B{} H{} S64..1024 D{} causal", P::kSequences, P::kHeads, P::kDim),
      .limit = Limit::kPlain,
      .goal = 1 / kWithinPlain,
      .prepare = prepare};
}

}  // namespace

std::vector<BenchCase> form_cases() {
  const AttentionShape token{.num_heads = 32, .num_kv_heads = 8, .q_len = 1, .kv_len = 8192, .head_dim = 128};
  const AttentionShape chunk{
      .num_heads = 8, .num_kv_heads = 2, .q_len = 512, .kv_len = 4608, .head_dim = 128, .causal = true};
  const Stored paged{"paged-f32", CacheStorage::kF32, CacheLayout::kPaged};
  std::vector<BenchCase> cases;
  for (const Stored& stored : {Stored{"f32", CacheStorage::kF32, CacheLayout::kContiguous}, paged,
           {"bf16", CacheStorage::kBF16, CacheLayout::kContiguous},
           {"int8", CacheStorage::kInt8, CacheLayout::kContiguous},
           {"paged-int8", CacheStorage::kInt8, CacheLayout::kPaged}})
    cases.push_back(cache_case(stored.name, token, stored));
  cases.push_back(cache_case("prompt-paged-f32", chunk, paged));
  cases.push_back(ragged_case(false));
  cases.push_back(ragged_case(true));
  return cases;
}

}  // namespace qkv::cli
