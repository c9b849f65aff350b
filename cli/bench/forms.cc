// Cases of the forms around attention: decoding on caches, stored in several ways, whose bytes are what must be read; a
// prompt's chunk on pages, held against plain tensors; a shared prefix as a cascade, held against a call that reads it for each
// sequence; ragged batches, held against their sequences one by one. Not: decoding on plain tensors (decode.cc).
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

/// One cache of these keys and values, or of as many as the peak of reading reads: no cache of the machine holds the next one.
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
    attention_forward(tensors.q, caches[turn].key_value(), {.out = tensors.out, .lse = tensors.lse}, tensors.options, context);
  }
};

BenchCase cache_case(const Stored& stored, bool quick) {
  const AttentionShape shape{.num_heads = 32, .num_kv_heads = 8, .q_len = 1, .kv_len = 8192, .head_dim = 128};
  return {.name = fmt::format("cache-{}-s{}", stored.name, shape.kv_len),
          .group = "caches",
          .shape = shape.text(),
          .quick = quick,
          .prepare = [shape, stored](Context& context) {
            auto problem = std::make_shared<CacheProblem>(shape, stored, kMemoryBytes);
            return Prepared{
                .run = [problem, &context] { problem->forward(context); },
                .judge = [problem] { return judge_rows(problem->tensors); },
                .flops = shape.forward_flops(),
                .bytes = problem->bytes(),
                .kernel = kernel_text(attention_plan(problem->tensors.q, problem->caches[0].key_value(), {}, context))};
          }};
}

/// The last 512 tokens of a prompt, on pages, against the same on plain tensors.
BenchCase prompt_case() {
  const AttentionShape shape{.num_heads = 8, .num_kv_heads = 2, .q_len = 512, .kv_len = 4608, .head_dim = 128, .causal = true};
  return {.name = fmt::format("cache-prompt-paged-f32-s{}", shape.kv_len),
          .group = "caches",
          .shape = shape.text(),
          .limit = Limit::kPlain,
          .goal = 1 / kWithinPlain,
          .prepare = [shape](Context& context) {
            auto problem = std::make_shared<CacheProblem>(shape, Stored{"", CacheStorage::kF32, CacheLayout::kPaged}, 0);
            const AttentionProblem<float>& tensors = problem->tensors;
            return Prepared{
                .run = [problem, &context] { problem->forward(context); },
                .judge = [problem] { return judge_rows(problem->tensors); },
                .plain = [problem, &context] { problem->tensors.forward(context); },
                .flops = shape.forward_flops(),
                .kernel = kernel_text(attention_plan(tensors.q, problem->caches[0].key_value(), tensors.options, context))};
          }};
}

/// 0 where two results are bit-identical, as they must be; otherwise infinite.
Judgement judge_same(std::span<const float> a, std::span<const float> b) {
  return {std::ranges::equal(a, b) ? 0.0 : std::numeric_limits<double>::infinity(), 0};
}

/// Forks of one prompt, each with tokens of its own.
struct CascadeProblem {
  static constexpr Index kSequences = 16, kShared = 4096, kOwn = 64, kHeads = 32, kKvHeads = 8, kDim = 128;
  KVCache cache{{.num_kv_heads = kKvHeads,
                 .head_dim = kDim,
                 .layout = CacheLayout::kPaged,
                 .max_sequences = kSequences,
                 .page_size = kPage,
                 .pages = kShared / kPage + kSequences * (kOwn / kPage + 1)}};
  Tensor<float> q{kSequences, kHeads, 1, kDim}, out{kSequences, kHeads, 1, kDim}, whole{kSequences, kHeads, 1, kDim};

  CascadeProblem() {
    Random random(19);
    const auto drawn = [&random](const std::vector<Index>& sizes) {
      Tensor<float> tensor(sizes);
      for (float& x : tensor.span()) x = 2 * random.uniform_f32() - 1;
      return tensor;
    };
    q = drawn(q.sizes());
    const Tensor<float> k = drawn({1, kKvHeads, kShared, kDim}), v = drawn(k.sizes());
    cache.append(k, v);
    while (std::ssize(cache.sequences()) < kSequences) cache.fork(0);
    const Tensor<float> own_k = drawn({kSequences, kKvHeads, kOwn, kDim}), own_v = drawn(own_k.sizes());
    cache.append(own_k, own_v);
  }
  void cascade(Context& context) { attention_forward_cascade(q, cache.key_value(), kShared, {.out = out}, {}, context); }
  void one_by_one(Context& context) { attention_forward(q, cache.key_value(), {.out = whole}, {}, context); }

  /// Both are averages of the same values, summed in different orders.
  Judgement judge(Context& context) {
    one_by_one(context);
    Judgement worst;
    for (Index n = 0; n < out.count(); ++n) {
      worst = worse(worst, judge_sum(static_cast<double>(out.data()[n]), static_cast<double>(whole.data()[n]), 1));
    }
    return worst;
  }
};

BenchCase cascade_case() {
  using P = CascadeProblem;
  BenchCase one;
  one.name = fmt::format("cascade-f32-b{}-s{}", P::kSequences, P::kShared);
  one.group = "caches";
  one.shape =
      fmt::format("B{} H{}/{} Tq1 shared {} own {} D{}", P::kSequences, P::kHeads, P::kKvHeads, P::kShared, P::kOwn, P::kDim);
  one.limit = Limit::kPlain;
  one.goal = 1;
  one.prepare = [](Context& context) {
    auto problem = std::make_shared<P>();
    Prepared prepared;
    prepared.run = [problem, &context] { problem->cascade(context); };
    prepared.judge = [problem, &context] { return problem->judge(context); };
    prepared.plain = [problem, &context] { problem->one_by_one(context); };
    prepared.flops = 4.0 * P::kSequences * P::kHeads * (P::kShared + P::kOwn) * P::kDim;
    prepared.kernel =
        "cascade; one by one: " + kernel_text(attention_plan(problem->q, problem->cache.key_value(), {}, context));
    return prepared;
  };
  return one;
}

/// 16 sequences of 64, 128, ..., 1,024 tokens, causal; and the same sequences, one call each.
struct RaggedProblem {
  static constexpr Index kHeads = 2, kDim = 64, kSequences = 16;
  std::vector<Index> offsets{0};
  Tensor<float> q, k, v, out, dout, dq, dk, dv, lse;                 // [total, H, D]; [total, H]
  Tensor<float> alone_out, alone_dq, alone_dk, alone_dv, alone_lse;  // of the calls one by one
  AttentionOptions options{.mask = Mask::causal()};

  RaggedProblem() {
    for (Index b = 0; b < kSequences; ++b) offsets.push_back(offsets.back() + 64 * (b + 1));
    Random random(23);
    for (Tensor<float>* t : {&q, &k, &v, &dout}) {
      *t = Tensor<float>({offsets.back(), kHeads, kDim});
      for (float& x : t->span()) x = 2 * random.uniform_f32() - 1;
    }
    for (Tensor<float>* t : {&out, &dq, &dk, &dv, &alone_out, &alone_dq, &alone_dk, &alone_dv}) *t = Tensor<float>(q.sizes());
    for (Tensor<float>* t : {&lse, &alone_lse}) *t = Tensor<float>({offsets.back(), kHeads});
  }
  RaggedOffsets both() const { return {offsets, offsets}; }
  void forward(Context& context) { attention_varlen_forward(q, k, v, {.out = out, .lse = lse}, both(), options, context); }
  void backward(Context& context) {
    attention_varlen_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, both(), options, context);
  }

  /// Sequence b of [total, H, D] as [1, H, T, D].
  template <class T>
  View<T, 4> sequence(View<T, 3> tokens, std::size_t b) const {
    const View<T, 3> own = tokens.sliced(0, offsets[b], offsets[b + 1]);
    return {own.data(), {1, kHeads, own.size(0), kDim}, {0, own.stride(1), own.stride(0), 1}};
  }
  View<const float, 4> input(const Tensor<float>& tokens, std::size_t b) const { return sequence(tokens.view<3>(), b); }
  View<float, 4> output(Tensor<float>& tokens, std::size_t b) const { return sequence(tokens.view<3>(), b); }
  View<float, 3> lse_of(std::size_t b) {
    const View<float, 2> own = alone_lse.view<2>().sliced(0, offsets[b], offsets[b + 1]);
    return {own.data(), {1, kHeads, own.size(0)}, {0, 1, kHeads}};
  }
  void one_by_one(bool backward, Context& context) {
    for (std::size_t b = 0; b < kSequences; ++b) {
      if (!backward) {
        attention_forward(input(q, b), input(k, b), input(v, b), {.out = output(alone_out, b), .lse = lse_of(b)}, options,
                          context);
        continue;
      }
      attention_backward(input(q, b), input(k, b), input(v, b), input(alone_out, b), lse_of(b), input(dout, b),
                         {.dq = output(alone_dq, b), .dk = output(alone_dk, b), .dv = output(alone_dv, b)}, options, context);
    }
  }
  Judgement judge(bool backward, Context& context) {
    one_by_one(backward, context);
    if (!backward) return worse(judge_same(out.span(), alone_out.span()), judge_same(lse.span(), alone_lse.span()));
    return worse(judge_same(dq.span(), alone_dq.span()),
                 worse(judge_same(dk.span(), alone_dk.span()), judge_same(dv.span(), alone_dv.span())));
  }
};

BenchCase ragged_case(bool backward) {
  using P = RaggedProblem;
  return {.name = fmt::format("ragged-{}-f32-d{}-b{}", backward ? "bwd" : "fwd", P::kDim, P::kSequences),
          .group = "ragged",
          .shape = fmt::format("B{} H{} S64..1024 D{} causal", P::kSequences, P::kHeads, P::kDim),
          .limit = Limit::kPlain,
          .goal = 1 / kWithinPlain,
          .prepare = [backward](Context& context) {
            auto problem = std::make_shared<P>();
            Prepared prepared;
            const AttentionPlan plan =
                attention_varlen_plan(problem->q, problem->k, problem->v, problem->both(), problem->options, context);
            prepared.flops = plan.forward_flops * (backward ? 2.5 : 1);
            prepared.kernel = kernel_text(plan);
            if (backward) {
              problem->forward(context);
              problem->one_by_one(false, context);
              prepared.run = [problem, &context] { problem->backward(context); };
            } else {
              prepared.run = [problem, &context] { problem->forward(context); };
            }
            prepared.plain = [problem, backward, &context] { problem->one_by_one(backward, context); };
            prepared.judge = [problem, backward, &context] { return problem->judge(backward, context); };
            return prepared;
          }};
}

}  // namespace

std::vector<BenchCase> form_cases() {
  std::vector<BenchCase> cases;
  for (const Stored& stored : {Stored{"f32", CacheStorage::kF32, CacheLayout::kContiguous},
                               {"paged-f32", CacheStorage::kF32, CacheLayout::kPaged},
                               {"bf16", CacheStorage::kBF16, CacheLayout::kContiguous},
                               {"int8", CacheStorage::kInt8, CacheLayout::kContiguous},
                               {"paged-int8", CacheStorage::kInt8, CacheLayout::kPaged}}) {
    cases.push_back(cache_case(stored, false));
  }
  cases.push_back(prompt_case());
  cases.push_back(cascade_case());
  cases.push_back(ragged_case(false));
  cases.push_back(ragged_case(true));
  return cases;
}

}  // namespace qkv::cli
