// Cases of the forms around attention: decoding on caches, stored in several ways, whose bytes are what must be read; a
// prompt's chunk on caches and pages, beside plain tensors; ragged batches, beside their sequences one by one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/problem.h"
#include "qkv/kv_cache.h"
#include "qkv/varlen.h"

namespace qkv::cli {
namespace {

constexpr Index kPage = 64;

struct Stored {
  const char* name;
  CacheStorage storage;
  CacheLayout layout;
};

/// Caches of the same keys and values, of `memory_bytes` together: no cache of the machine holds the next one. Queries
/// are of type T.
template <class T> struct CacheProblem {
  AttentionProblem<T> tensors;
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
  }

  double bytes() const { return static_cast<double>(caches[0].bytes()); }
  void forward(Context& context) {
    turn = (turn + 1) % caches.size();
    attention_forward(
        tensors.q, caches[turn].key_value(), {.out = tensors.out, .lse = tensors.lse}, tensors.options, context);
  }
};

/// One new token reads the cache; a prompt's chunk computes beside plain tensors.
template <class T = float>
BenchCase cache_case(const std::string& name, const AttentionShape& shape, const Stored& stored) {
  const bool reads = shape.q_len == 1;
  const auto prepare = [shape, stored, reads](Context& context) {
    const auto p = std::make_shared<CacheProblem<T>>(shape, stored, reads ? kMemoryBytes : 0);
    Prepared prepared{.run = [p, &context] { p->forward(context); },
        .flops = shape.forward_flops(),
        .bytes = reads ? p->bytes() : 0,
        .kernel = kernel_text(attention_plan(p->tensors.q, p->caches[0].key_value(), p->tensors.options, context))};
    if (!reads) prepared.plain = [p, &context] { p->tensors.forward(context); };
    return prepared;
  };
  return {.name = fmt::format("cache-{}-s{}", name, shape.kv_len),
      .group = "caches",
      .shape = shape.text(),
      .type = std::is_same_v<T, BFloat16>  ? "bf16"
              : std::is_same_v<T, Float16> ? "f16"
                                           : "f32",
      .prepare = prepare};
}

/// Storages that other libraries have too: a token on long caches, 16 sequences at once, a prompt's chunk.
template <class T = float> void add_storage(std::vector<BenchCase>& cases, const char* name, CacheStorage storage) {
  const Stored stored{name, storage, CacheLayout::kContiguous};
  AttentionShape shape{.num_heads = 32, .num_kv_heads = 8, .q_len = 1, .head_dim = 128};
  for (const Index keys : {8192, 32768}) {
    shape.kv_len = keys;
    cases.push_back(cache_case<T>(name, shape, stored));
  }
  shape.batch = 16, shape.kv_len = 2048;
  cases.push_back(cache_case<T>(fmt::format("{}-b16", name), shape, stored));
  shape.batch = 1, shape.num_heads = 8, shape.num_kv_heads = 2, shape.causal = true;
  for (const auto& [queries, keys] : {std::pair<Index, Index>{512, 8192}, {128, 32768}}) {
    shape.q_len = queries, shape.kv_len = keys;
    cases.push_back(cache_case<T>(fmt::format("prompt-{}", name), shape, stored));
  }
}

/// Packed sequences of 64, 128, ..., 1,024 tokens, causal, in one call and one call each.
struct RaggedProblem {
  static constexpr Index kHeads = 2, kDim = 64, kSequences = 16;
  std::vector<Index> offsets{0};
  Tensor<float> q, k, v, dout, out, dq, dk, dv, lse;  // [total, H, D]; lse [total, H]
  AttentionOptions options{.mask = Mask::causal()};

  RaggedProblem() {
    for (Index b = 0; b < kSequences; ++b) offsets.push_back(offsets.back() + 64 * (b + 1));
    Random random(23);
    for (Tensor<float>* t : {&q, &k, &v, &dout}) *t = uniform_tensor<float>(random, {offsets.back(), kHeads, kDim});
    for (Tensor<float>* t : {&out, &dq, &dk, &dv}) *t = Tensor<float>(q.sizes());
    lse = Tensor<float>({offsets.back(), kHeads});
  }
  RaggedOffsets both() const { return {offsets, offsets}; }

  void run(bool backward, Context& context) {
    if (!backward) return attention_varlen_forward(q, k, v, {.out = out, .lse = lse}, both(), options, context);
    attention_varlen_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, both(), options, context);
  }
  void one_by_one(bool backward, Context& context) {
    for (std::size_t b = 0; b < kSequences; ++b) {
      const Index first = offsets[b], length = offsets[b + 1] - first;
      const auto rows = [&](Tensor<float>& x) {  // [1, H, T, D]
        return View<float, 4>(x.data() + first * kHeads * kDim, {1, kHeads, length, kDim}, {0, kDim, kHeads * kDim, 1});
      };
      const View<float, 3> l(lse.data() + first * kHeads, {1, kHeads, length}, {0, 1, kHeads});
      if (!backward) {
        attention_forward(rows(q), rows(k), rows(v), {.out = rows(out), .lse = l}, options, context);
      } else {
        attention_backward(rows(q), rows(k), rows(v), rows(out), l, rows(dout),
            {.dq = rows(dq), .dk = rows(dk), .dv = rows(dv)}, options, context);
      }
    }
  }
};

BenchCase ragged_case(bool backward) {
  using P = RaggedProblem;
  const auto prepare = [backward](Context& context) {
    const auto p = std::make_shared<P>();
    const AttentionPlan plan = attention_varlen_plan(p->q, p->k, p->v, p->both(), p->options, context);
    if (backward) p->run(false, context);
    return Prepared{.run = [p, backward, &context] { p->run(backward, context); },
        .plain = [p, backward, &context] { p->one_by_one(backward, context); },
        .flops = plan.forward_flops * (backward ? 2.5 : 1),
        .kernel = kernel_text(plan)};
  };
  return {.name = fmt::format("ragged-{}-f32-d{}-b{}", backward ? "bwd" : "fwd", P::kDim, P::kSequences),
      .group = "ragged",
      .shape = fmt::format("B{} H{} S64..1024 D{} causal", P::kSequences, P::kHeads, P::kDim),
      .prepare = prepare};
}

}  // namespace

std::vector<BenchCase> form_cases() {
  const AttentionShape token{.num_heads = 32, .num_kv_heads = 8, .q_len = 1, .kv_len = 8192, .head_dim = 128};
  const AttentionShape chunk{
      .num_heads = 8, .num_kv_heads = 2, .q_len = 512, .kv_len = 4608, .head_dim = 128, .causal = true};
  const Stored paged{"paged-f32", CacheStorage::kF32, CacheLayout::kPaged};
  std::vector<BenchCase> cases;
  add_storage(cases, "f32", CacheStorage::kF32);
  add_storage<BFloat16>(cases, "bf16", CacheStorage::kBF16);
  add_storage<Float16>(cases, "f16", CacheStorage::kF16);
  add_storage(cases, "int8", CacheStorage::kInt8);
  add_storage(cases, "int4", CacheStorage::kInt4);
  for (const Stored& stored : {paged, Stored{"paged-int8", CacheStorage::kInt8, CacheLayout::kPaged}})
    cases.push_back(cache_case(stored.name, token, stored));
  cases.push_back(cache_case("prompt-paged-f32", chunk, paged));
  cases.push_back(ragged_case(false));
  cases.push_back(ragged_case(true));
  return cases;
}

}  // namespace qkv::cli
