// The core when memory is out, or must not be asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "core/threads/scratch.h"
#include "qkv/block_map.h"
#include "qkv/convert.h"
#include "qkv/derivatives.h"
#include "qkv/easy.h"
#include "qkv/qkv.h"
#include "qkv/rotary.h"
#include "qkv/state_dict.h"
#include "qkv/top_keys.h"
#include "qkv/varlen.h"
#include "support/allocations.h"
#include "support/storage.h"

namespace qkv {
namespace {

/// Freeing must work when memory is out, and in a destructor.
TEST(Scratch, FreeingAllocatesNothing) {
  auto pool = std::make_unique<ScratchPool>();
  for (int round = 0; round < 2; ++round) {
    std::vector<ScratchPool::Block> blocks;
    for (std::size_t bytes = 64; bytes < 10000; bytes *= 2) blocks.push_back(pool->take(bytes));
    const ScratchPool::Block kept = blocks.back();
    blocks.pop_back();
    for (const ScratchPool::Block& block : blocks) pool->give_back(block);
    const long before = allocations.load();
    pool->trim();
    pool->give_back(kept);
    if (round == 1) pool.reset();
    EXPECT_EQ(allocations.load(), before);
  }
}

/// No memory for a thread is no reason to end: those that run do all bodies.
TEST(ThreadPool, RunsOnTheThreadsThatMemoryAllows) {
  for (long allowed = 0; allowed < 24; ++allowed) {
    const auto pool = make_thread_pool(6);
    std::array<std::atomic<int>, 9> counts{};
    const std::function<void(int)> body = [&](int n) { ++counts[static_cast<std::size_t>(n)]; };
    const FailingAllocations failing(allowed);
    try {
      pool->run(9, body);
    } catch (const std::bad_alloc&) {
      EXPECT_LT(allowed, 1) << "there was memory for the team itself";
      for (const auto& count : counts) EXPECT_EQ(count.load(), 0);
      continue;
    }
    for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
  }
}

/// A worker without memory ends the call, not the process, and the pool goes on. Bodies that wait for each other are on
/// a thread each.
TEST(ThreadPool, AWorkerOutOfMemoryIsBadAllocOfTheCall) {
  constexpr int workers = 3;
  Context context({.threads = workers});
  std::array<std::unique_ptr<int>, workers> made;
  const std::function<void(Index, int)> nothing = [](Index, int) {};
  context.parallel_for(workers, nothing);  // the threads
  for (const Refused kind : {Refused::kOthers, Refused::kAll, Refused::kOne}) {
    for (long allowed = 0; allowed <= workers; ++allowed) {
      std::barrier together(workers);
      for (auto& number : made) number.reset();
      const std::function<void(Index, int)> body = [&](Index item, int) {
        together.arrive_and_wait();
        made[static_cast<std::size_t>(item)] = std::make_unique<int>(1);
      };
      const long asking = kind == Refused::kOthers ? workers - 1 : workers;
      bool thrown = false;
      try {
        const FailingAllocations failing(allowed, kind);
        context.parallel_for(workers, body);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      EXPECT_EQ(thrown, allowed < asking);
      const long missing = std::ranges::count(made, nullptr, &std::unique_ptr<int>::get);
      EXPECT_EQ(missing, !thrown ? 0 : kind == Refused::kOne ? 1 : asking - allowed);
      context.parallel_for(workers, nothing);
    }
  }
}

const auto q = test::random_tensor({2, 4, 5, 8}, 1), k = test::random_tensor({2, 2, 9, 8}, 2),
           v = test::random_tensor({2, 2, 9, 8}, 3), dout = test::random_tensor({2, 4, 5, 8}, 4),
           bias = test::random_tensor({1, 4, 5, 9}, 5), sinks = test::random_tensor({4}, 6);
const std::vector<Index> offsets{0, 2, 2, 5}, key_offsets{0, 4, 5, 9};

std::vector<double> dense(const AttentionOptions& options, Context& context) {
  Tensor<float> out(q.sizes()), lse({2, 4, 5}), low({2, 4, 5}), weights({2, 4, 5, 9}), dq(q.sizes()), dk(k.sizes()),
      dv(v.sizes()), dbias(bias.sizes()), dsinks({4}), dposition({options.position_bias.rows(), 4});
  attention_forward(q, k, v, {.out = out, .lse = lse, .weights = weights, .lse_low = low}, options, context);
  AttentionGradients<float> gradients{.dq = dq, .dk = dk, .dv = dv, .lse_low = low};
  if (!options.bias.is_null()) gradients.dbias = dbias;
  if (!options.sinks.is_null()) gradients.dsinks = dsinks;
  if (!options.position_bias.is_none()) gradients.dposition_bias = dposition;
  attention_backward(q, k, v, out, lse, dout, gradients, options, context);
  const AttentionPlan plan = attention_plan(q, k, v, options, context);
  return numbers_of(out.span(), weights.span(), dq.span(), dk.span(), dv.span(), dbias.span(), dsinks.span(),
      dposition.span(), plan.algorithm);
}

std::vector<double> of_mask(const Mask& mask) {
  Tensor<std::uint8_t> keep({2, 4, 5, 9}), rows({2, 9});
  mask_to_dense(mask, keep);
  const std::vector<Index> chosen{1, 3};
  mask_rows(mask, {2, 4, 5, 9}, 0, 1, chosen, rows);
  const BlockMap map = block_map(mask, {2, 4, 5, 9, 2, 3});
  std::vector<double> all = numbers_of(keep.span(), rows.span(), map.row_begin, map.columns, mask.describe());
  all.push_back(mask_may_keep(mask, {2, 4, 5, 9}, 1, 2, 3, 4));
  return all;
}

TEST(Memory, OutInAttentionIsBadAlloc) {
  const auto table = test::random_tensor({7, 4}, 7);
  const auto mod = score_mod(
      [](auto s, Index, Index, Index, Index) { return s / 2; }, [](auto, Index, Index, Index, Index) { return 0.5; });
  expect_only_bad_alloc_of({
      {"plain", [] { return dense({.mask = Mask::causal(Align::kBottomRight)}, TwoThreads()); }},
      {"bias, sinks, dropout",
          [] {
            return dense(
                {.bias = bias, .softcap = 3, .dropout = {.p = 0.3, .seed = 2, .training = true}, .sinks = sinks},
                TwoThreads());
          }},
      {"alibi",
          [] {
            return dense({.position_bias = PositionBias::alibi(alibi_slopes(4), Align::kBottomRight)}, TwoThreads());
          }},
      {"t5",
          [&] {
            return dense(
                {.position_bias = PositionBias::t5(table, {.num_buckets = 7, .max_distance = 9}, Align::kBottomRight)},
                TwoThreads());
          }},
      {"relative",
          [&] {
            return dense(
                {.position_bias = PositionBias::relative(table, Align::kBottomRight), .score_mod = mod}, TwoThreads());
          }},
      {"captured",
          [] {
            const Capture what{
                .rows = {2}, .top_k = 3, .statistics = true, .column_mass = true, .map_rows = 2, .map_columns = 2};
            CaptureResult found;
            return dense({.capture = {what, found}}, TwoThreads());
          }},
      {"second order",
          [] {
            Tensor<float> out(q.sizes()), lse({2, 4, 5}), gq(q.sizes()), gk(k.sizes()), gv(v.sizes());
            TwoThreads two;
            attention_forward(q, k, v, {.out = out, .lse = lse}, {}, two);
            const AttentionTangents<float> tangents{.q = dout, .k = v, .v = k};
            attention_double_backward(q, k, v, out, lse, dout, tangents, {.gq = gq, .gk = gk, .gv = gv}, {}, two);
            attention_jvp(q, k, v, lse, tangents, out, {}, {}, two);
            return numbers_of(gq.span(), gk.span(), gv.span(), out.span(), lse.span());
          }},
      {"ragged",
          [] {
            const auto rows = test::random_tensor({5, 4, 8}, 1), keys = test::random_tensor({9, 2, 8}, 2);
            const RaggedOffsets both{offsets, key_offsets};
            Tensor<float> out(rows.sizes()), lse({5, 4}), weights({ragged_weights_count(both, 4)}), dq(rows.sizes()),
                dk(keys.sizes()), dv(keys.sizes());
            TwoThreads two;
            attention_varlen_forward(rows, keys, keys, {.out = out, .lse = lse, .weights = weights}, both, {}, two);
            attention_varlen_backward(rows, keys, keys, out, lse, rows, {.dq = dq, .dk = dk, .dv = dv}, both, {}, two);
            const AttentionPlan plan = attention_varlen_plan(rows, keys, keys, both, {}, two);
            return numbers_of(out.span(), weights.span(), dq.span(), dk.span(), dv.span(), plan.algorithm);
          }},
      {"merged",
          [] {
            const Tensor<float> first = test::random_tensor({2, 4, 5}, 1), second = test::random_tensor({2, 4, 5}, 2);
            const std::array<View<const float, 4>, 2> outs = {q, dout};
            const std::array<View<const float, 3>, 2> lses = {first, second};
            Tensor<float> out(q.sizes()), lse({2, 4, 5});
            TwoThreads two;
            merge_attention(outs, lses, out, lse, two);
            return numbers_of(out.span(), lse.span());
          }},
      {"easy",
          [] {
            const easy::Shape shape{.B = 2, .H = 4, .T = 5, .D = 8, .Hkv = 2, .Tk = 9};
            const auto r = easy::attention(q.span(), k.span(), v.span(), shape);
            const auto g = easy::backward(q.span(), k.span(), v.span(), r, dout.span(), shape);
            return numbers_of(r.out, r.lse, g.dq, g.dk, g.dv);
          }},
      {"lists of keys",
          [] {
            const auto queries = test::random_tensor({2, 3, 5, 8}, 1), keys = test::random_tensor({2, 9, 8}, 2),
                       weights = test::random_tensor({2, 3, 5}, 3);
            Tensor<std::int32_t> index({2, 1, 5, 3});
            TwoThreads two;
            top_keys(queries, keys, weights, index, {.mask = Mask::causal(Align::kBottomRight)}, two);
            return dense({.mask = Mask::keys(index)}, two);
          }},
      {"refused",
          [] {
            try {
              Tensor<float> out({2, 4, 5, 7});
              attention_forward(q, k, v, {.out = out});
            } catch (const ShapeError& error) {
              return numbers_of(std::string_view(error.what()));
            }
            return std::vector<double>{};
          }},
  });
}

TEST(Memory, OutInMasksAndPartsIsBadAlloc) {
  const std::vector<Index> lengths{3, 5}, starts{0, 1};
  const std::vector<Index> ids{0, 0, 1, 1, 1}, key_ids{0, 0, 0, 1, 1, 1, 1, 2, 2};
  Tensor<std::uint8_t> kept({5, 9});
  for (std::size_t n = 0; n < kept.span().size(); n += 2) kept.span()[n] = 1;
  expect_only_bad_alloc_of({
      {"masks",
          [&] {
            return of_mask(
                (Mask::window(2, 1, starts) | Mask::first(2) | Mask::global_rows(starts) |
                    Mask::global_columns(starts) | Mask::dilated(2, Align::kBottomRight) | Mask::prefix(lengths)) &
                Mask::key_lengths(lengths) & Mask::key_starts(starts) & Mask::query_lengths(lengths));
          }},
      {"documents",
          [&] {
            return of_mask((Mask::documents(offsets, key_offsets, Mask::causal(Align::kBottomRight)) |
                               Mask::document_ids(ids, key_ids) | Mask::chunked(3, starts, Align::kBottomRight)) &
                           Mask::keep(kept, MaskAxes::kQk));
          }},
      {"callback",
          [&] {
            const BlockMap map = block_map(Mask::causal(Align::kBottomRight), {1, 1, 5, 9, 2, 3});
            return of_mask(Mask::blocks(map) & Mask::mask_mod([](Index, Index, Index i, Index j) { return i != j; }));
          }},
      {"rotary",
          [] {
            const auto tables = test::random_tensor({12, 2}, 1);
            const Rotary angles(8, {.scaling = RotaryScaling::kYarn, .factor = 2, .original_context = 8});
            const Rotary given(8, View<const float, 2>(tables), View<const float, 2>(tables));
            Tensor<float> y(q.sizes()), dx(q.sizes());
            TwoThreads two;
            angles.forward(q, y, {.offset = 3}, two);
            given.forward(y, y, {.offset = 3}, two);
            given.backward(dout, dx, {}, two);
            return numbers_of(y.span(), dx.span(), angles.frequencies());
          }},
      {"conversion",
          [] {
            Tensor<BFloat16> half(q.sizes());
            Tensor<float> back(q.sizes());
            TwoThreads two;
            convert(q, half, two);
            convert(half, back, two);
            return numbers_of(back.span());
          }},
      {"dropout's factors",
          [] {
            Tensor<float> factors({2, 4, 5, 9});
            dropout_factors({.p = 0.3, .training = true}, factors);
            return numbers_of(factors.span());
          }},
      {"state",
          [] {
            StateDict state;
            state.metadata["of"] = std::string(40, 'm');
            state.add("q", any_tensor(q));
            state.add("whole", any_tensor(Tensor<std::int64_t>({3})));
            const StateDict copy = state.clone();
            return numbers_of(to_f64(copy.at("q")).span(), to_f32(copy.at("q")).span(), to_bool(copy.at("q")).span(),
                to_i64(copy.at("whole")).span(), copy.metadata.at("of"));
          }},
  });
}

/// The caller asks for what they need.
TEST(Memory, WorkersOfAttentionAllocateNothing) {
  const long before = refusals;
  expect_only_bad_alloc([] { dense({.bias = bias}, TwoThreads()); }, {Refused::kOthers});
  EXPECT_EQ(refusals, before);
}

/// Pages, forks, a ring, quantised rows: what is written, what is read, and the answer.
std::vector<double> of_cache(KVCacheConfig config) {
  TwoThreads two;
  config.num_kv_heads = 2, config.head_dim = 8, config.sequences = 2, config.max_sequences = 3;
  KVCache cache(config, two);
  const Index step = config.layout == CacheLayout::kRing ? 2 : 5;
  const auto rows = test::random_tensor({2, 2, step, 8}, 2), queries = test::random_tensor({2, 4, 2, 8}, 1);
  cache.append(rows, rows);
  const Index fork = cache.fork(1);
  const std::vector<Index> own{0, fork};
  cache.append(own, rows, rows);
  cache.free(1);
  cache.truncate(fork, cache.length(fork) - 1);
  Tensor<float> out(queries.sizes()), read_k({2, 2, 8}), read_v({2, 2, 8});
  Tensor<double> bound({2, 4, 2});
  const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight)};
  attention_forward(queries, cache.key_value(), {.out = out}, options, two);
  const AttentionPlan plan = attention_plan(queries, cache.key_value(own), options, two);
  cache.read(fork, cache.length(fork) - 2, read_k, read_v);
  cache.error_bound(queries, bound);
  return numbers_of(out.span(), read_k.span(), read_v.span(), bound.span(), plan.algorithm);
}

TEST(Memory, OutInCachesIsBadAlloc) {
  const auto rows = test::random_tensor({2, 2, 4, 8}, 2), queries = test::random_tensor({2, 4, 1, 8}, 1);
  expect_only_bad_alloc_of({
      {"contiguous", [] { return of_cache({.capacity = 12}); }},
      {"ring", [] { return of_cache({.layout = CacheLayout::kRing, .window = 3, .max_append = 2, .first = 1}); }},
      {"pages", [] { return of_cache({.layout = CacheLayout::kPaged, .page_size = 2, .pages = 20}); }},
      {"8 bits",
          [] {
            return of_cache(
                {.storage = CacheStorage::kInt8, .layout = CacheLayout::kPaged, .page_size = 4, .pages = 12});
          }},
      {"4 bits", [] { return of_cache({.storage = CacheStorage::kInt4, .capacity = 12}); }},
      {"bf16", [] { return of_cache({.storage = CacheStorage::kBF16, .capacity = 12}); }},
      {"memory of the caller",
          [&] {
            const Tensor<Index> pages({2, 2});
            const std::vector<Index> lengths{3, 7};
            Tensor<float> out(queries.sizes()), too(queries.sizes());
            TwoThreads two;
            attention_forward(queries, KeyValue::contiguous(rows, rows), {.out = out}, {}, two);
            attention_forward(
                queries, KeyValue::paged(rows, rows, View<const Index, 2>(pages), lengths), {.out = too}, {}, two);
            return numbers_of(out.span(), too.span());
          }},
  });
}

}  // namespace
}  // namespace qkv
