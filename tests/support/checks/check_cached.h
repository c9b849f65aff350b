// Attention on caches, one case each: rows as they are stored against the textbook, a ring against a cache that keeps
// everything. Every instruction set.
#pragma once

#include "support/cases/cached_case.h"
#include "support/isas.h"
#include "support/random.h"

namespace qkv::test {

/// k and v become what the cache holds of them: rounded once, the truth for any call on it.
template <class T>
void copy_what_is_stored(const KVCache& cache, const std::vector<Index>& lengths, const Problem<T>& problem) {
  if constexpr (!kIsHalf<T>) {
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const auto one = [&](const View<T, 4>& x) {
        return View<T, 3>(x.data() + static_cast<Index>(b) * x.stride(0), {x.size(1), lengths[b], x.size(3)},
            {x.stride(1), x.stride(2), x.stride(3)});
      };
      cache.read(static_cast<Index>(b), 0, one(problem.k()), one(problem.v()));
    }
  }
}

/// Queries on a cache whose sequence b holds lengths[b] <= kv_len tokens: the textbook on the numbers that are stored
/// is the truth. Where lengths differ, the mask and the position bias must not be aligned to the last key, which is
/// another for each.
template <class T> void check_cached(const AttentionCase& each, CacheKind kind, CacheStorage storage,
    const std::vector<Index>& lengths, int threads, Worst& worst) {
  SCOPED_TRACE(each.name() + " on " + cache_name(kind) + " as " + kStorageNames[static_cast<std::size_t>(storage)]);
  Problem<T> problem(each);
  KVCache cache =
      empty_cache(kind, storage, each.batch, each.num_kv_heads, each.head_dim, each.v_head_dim, each.kv_len);
  fill_cache(cache, problem.k(), problem.v(), lengths, each.seed);
  copy_what_is_stored(cache, lengths, problem);
  problem.mask.keep = [&lengths, keep = problem.mask.keep](Index b, Index h, Index i, Index j) {
    return j < lengths[static_cast<std::size_t>(b)] && keep(b, h, i, j);
  };
  const Expectation<T> expectation(problem, false);
  for_each_isa(threads, [&](Context& context) {
    Result<T> result(problem);
    attention_forward(
        problem.q(), cache.key_value(), {.out = result.out.view, .lse = result.lse}, problem.options, context);
    EXPECT_TRUE(expectation.holds_forward(result, each.name(), worst));
    EXPECT_TRUE(result.sentinels_intact());
  });
}

/// RingCase{group, window, most, max_append, first, storage, seed}
struct RingCase {
  Index group = 1, window = 1, most = 100, max_append = 1, first = 0;
  CacheStorage storage = CacheStorage::kF32;
  std::uint64_t seed = 1;
};

/// A ring sees its window and the first keys, and is bit-identical to a cache that has kept everything, under the same
/// mask.
template <class T> void check_ring(const RingCase& c) {
  const Problem<T> problem(cached_case(c.group, c.most, c.most, 20, 12));
  const View<T, 4> q = problem.q(), k = problem.k(), v = problem.v();
  KVCache whole = empty_cache(CacheKind::kContiguous, c.storage, 1, 2, 20, 12, c.most);
  KVCache ring = empty_cache(CacheKind::kRing, c.storage, 1, 2, 20, 12, c.most, c.window, c.max_append, c.first);
  const AttentionOptions causal{.mask = Mask::causal(Align::kBottomRight)};
  const Mask shown = Mask::window(c.window - 1, -1, Align::kBottomRight) | Mask::first(c.first);
  const AttentionOptions both{.mask = Mask::causal(Align::kBottomRight) & shown};
  Random random(c.seed);
  for (Index done = 0; done < c.most;) {
    const Index chunk = random.below(4) == 0 ? 1 + random.below(c.max_append) : 1 + random.below(3);
    const Index n = std::min({c.most - done, chunk, c.max_append});
    const auto part = [&](const View<T, 4>& x) { return View<const T, 4>(x.sliced(2, done, done + n)); };
    whole.append(part(k), part(v));
    ring.append(part(k), part(v));
    for_each_isa(1, [&](Context& context) {
      const Answer<T> expected(part(q), whole.key_value(), both, context);
      EXPECT_TRUE(Answer<T>(part(q), ring.key_value(), causal, context) == expected) << n << " queries at " << done;
      EXPECT_TRUE(Answer<T>(part(q), ring.key_value(), both, context) == expected);
    });
    done += n;
  }
  if (c.most < c.first + c.window + c.max_append) return;  // nothing is overwritten yet
  Context context({.threads = 1});
  Tensor<T> out({1, 2 * c.group, c.max_append + 1, 12});
  EXPECT_THROW(attention_forward(q.sliced(2, 0, c.max_append + 1), ring.key_value(), {.out = out}, causal, context),
      OptionError);
}

}  // namespace qkv::test
