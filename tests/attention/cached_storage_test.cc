// Caches in fewer bits than the queries, against the reference on what is stored and against what rounding may cost; and the
// cascade of a shared prefix. Not: layouts, masks, bits (cached_attention_test.cc).
#include <gtest/gtest.h>

#include <cmath>

#include "support/cached_case.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

/// 16-bit queries on rows of their own type. Not with bf16 instructions, which round the weights.
template <class Half>
void expect_plain_bits_of_half() {
  for (const AttentionCase& each : cached_shapes()) {
    SCOPED_TRACE(each.name());
    const Problem<Half> problem(each);
    const KVCache cache = cache_of(CacheKind::kPages16, kStorageOf<Half>, problem.k(), problem.v());
    for_each_isa(2, [&](Context& context) {
      if (context.isa() == Isa::kAvx512Bf16) return;
      const View<const Half, 4> q = problem.q(), k = problem.k(), v = problem.v();
      EXPECT_TRUE(Answer<Half>(q, cache.key_value(), problem.options, context) ==
                  Answer<Half>(q, k, v, problem.options, context));
    });
  }
}
TEST(CachedAttentionHalf, GivesTheBitsOfThePlainCall) {
  expect_plain_bits_of_half<BFloat16>();
  expect_plain_bits_of_half<Float16>();
}

/// Float queries on what a cache has stored in fewer bits: the reference on the stored numbers is the truth.
TEST(CachedAttentionStorage, IsExactForWhatIsStored) {
  for (const CacheStorage storage : {CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8}) {
    Worst worst;
    for (const AttentionCase& each : cached_shapes()) {
      SCOPED_TRACE(each.name());
      Problem<float> problem(each);
      const KVCache cache = cache_of(CacheKind::kPages16, storage, problem.k(), problem.v());
      for (Index b = 0; b < each.batch; ++b) {
        const auto one = [b](const View<float, 4>& x) {
          return View<float, 3>(&x(b, 0, 0, 0), {x.size(1), x.size(2), x.size(3)}, {x.stride(1), x.stride(2), x.stride(3)});
        };
        cache.read(b, 0, one(problem.k()), one(problem.v()));
      }
      const Expectation<float> expectation(problem);
      for_each_isa(2, [&](Context& context) {
        Result<float> result(problem);
        attention_forward(problem.q(), cache.key_value(), result.out.view, result.lse, problem.options, context);
        EXPECT_TRUE(expectation.holds_forward(result, each.name(), worst));
        EXPECT_TRUE(result.sentinels_intact());
      });
    }
    worst.print("cache storage");
  }
}

/// What 8 bits cost, from the bound of an element: a score moves by at most delta = max_j |scale| |q|_1 max|k_j| / 254, a
/// weight by a factor within exp(+-2 delta), and a value by max|v_j| / 254.
TEST(CachedAttentionStorage, IntegersStayWithinTheirBound) {
  for (const Index q_len : {1, 40}) {
    const Problem<float> problem(cached_case(2, q_len, 600, 64, 48, MaskKind::kCausalBottomRight));
    const KVCache cache = cache_of(CacheKind::kContiguous, CacheStorage::kInt8, problem.k(), problem.v());
    const auto exact = problem.template reference_input<double>().forward();
    const View<const double, 4> exact_out = exact.out, weights = exact.weights;
    const View<const double, 3> exact_lse = exact.lse;
    const View<float, 4> q = problem.q(), k = problem.k(), v = problem.v();
    const auto row_max = [](const View<float, 4>& x, Index g, Index j) {
      double largest = 0;
      for (Index d = 0; d < x.size(3); ++d) largest = std::max(largest, std::abs(double{x(0, g, j, d)}));
      return largest;
    };
    for_each_isa(1, [&](Context& context) {
      const Answer<float> answer(q, cache.key_value(), problem.options, context);
      const View<const float, 4> out = answer.out;
      const View<const float, 3> lse = answer.lse;
      double worst = 0;
      for (Index h = 0; h < q.size(1); ++h) {
        for (Index i = 0; i < q_len; ++i) {
          double sum_q = 0, delta = 0, value_error = 0;
          for (Index d = 0; d < 64; ++d) sum_q += std::abs(double{q(0, h, i, d)});
          for (Index j = 0; j < 600; ++j) {
            if (weights(0, h, i, j) == 0) continue;
            delta = std::max(delta, sum_q / 8 * row_max(k, h / 2, j) / 254);
            value_error = std::max(value_error, row_max(v, h / 2, j) / 254);
          }
          EXPECT_LE(std::abs(double{lse(0, h, i)} - exact_lse(0, h, i)), delta * 1.001 + 1e-5);
          for (Index d = 0; d < 48; ++d) {
            double moved = 0;
            for (Index j = 0; j < 600; ++j) moved += weights(0, h, i, j) * std::abs(double{v(0, h / 2, j, d)});
            const double bound = (std::exp(2 * delta) - 1) * moved + value_error * 1.001 + 1e-5;
            const double error = std::abs(double{out(0, h, i, d)} - exact_out(0, h, i, d));
            ASSERT_LE(error, bound);
            worst = std::max(worst, error / bound);
          }
        }
      }
      std::printf("int8 cache, %d queries: worst error/bound %.3f\n", static_cast<int>(q_len), worst);
    });
  }
}

/// A prefix that all sequences share, read once: the same as each on its own, within the bounds of a merge.
template <class T>
void expect_cascade(CacheStorage storage) {
  const Index shared = 320, batch = 3;
  for (const Index q_len : {1, 3}) {
    AttentionCase each = cached_case(2, q_len, 400, 24, 40);
    each.batch = batch;
    Problem<T> problem(each);
    const View<T, 4> k = problem.k(), v = problem.v();
    for (Index b = 1; b < batch; ++b) {  // the first keys are those of sequence 0
      for (Index g = 0; g < 2; ++g) {
        for (Index j = 0; j < shared; ++j) {
          for (Index d = 0; d < 24; ++d) k(b, g, j, d) = k(0, g, j, d);
          for (Index d = 0; d < 40; ++d) v(b, g, j, d) = v(0, g, j, d);
        }
      }
    }
    const std::vector<Index> lengths = {400, q_len == 1 ? shared : 322, 350};  // one may have nothing of its own
    KVCache cache({.num_kv_heads = 2,
                   .head_dim = 24,
                   .v_head_dim = 40,
                   .storage = storage,
                   .layout = CacheLayout::kPaged,
                   .max_sequences = batch,
                   .page_size = 16,
                   .pages = 40});
    const auto rows = [](const View<T, 4>& x, Index b, Index begin, Index end) {
      return View<const T, 4>(x.sliced(0, b, b + 1).sliced(2, begin, end));
    };
    cache.append(rows(k, 0, 0, shared), rows(v, 0, 0, shared));
    const Index used = 40 - cache.free_pages();
    EXPECT_EQ(used, shared / 16);
    for (Index b = 1; b < batch; ++b) cache.fork(0);
    for (Index b = 0; b < batch; ++b) {
      const Index length = lengths[static_cast<std::size_t>(b)];
      cache.append({&b, 1}, rows(k, b, shared, length), rows(v, b, shared, length));
    }
    EXPECT_LE(40 - cache.free_pages(), used + 5 + 1 + 2) << "the prefix is not shared";
    problem.mask.keep = [&](Index b, Index, Index i, Index j) { return j <= lengths[static_cast<std::size_t>(b)] - q_len + i; };
    const Expectation<T> expectation(problem);
    const AttentionOptions options{.mask = Mask::causal(Align::kBottomRight)};
    Worst worst;
    for_each_isa(2, [&](Context& context) {
      Result<T> result(problem);
      attention_forward_cascade(problem.q(), cache.key_value(), shared, result.out.view, result.lse, options, context);
      EXPECT_TRUE(expectation.holds_forward(result, each.name(), worst));
      Result<T> without_lse(problem);
      attention_forward_cascade(problem.q(), cache.key_value(), shared, without_lse.out.view, {}, options, context);
      EXPECT_TRUE(same_bits(copy_as<T>(result.out.view), copy_as<T>(without_lse.out.view)));
      const auto run = [&](Index keys, const AttentionOptions& with) {
        attention_forward_cascade(problem.q(), cache.key_value(), keys, result.out.view, {}, with, context);
      };
      EXPECT_THROW(run(321, options), OptionError) << "not in the same pages";
      EXPECT_THROW(run(323, options), OptionError) << "longer than a sequence";
      EXPECT_THROW(run(-1, options), OptionError);
      EXPECT_THROW(run(shared, {.mask = Mask::sliding(100, Align::kBottomRight)}), OptionError);
      run(0, options);
    });
    worst.print("cascade");
  }
}
TEST(Cascade, IsEverySequenceOnItsOwn) {
  expect_cascade<float>(CacheStorage::kF32);
  expect_cascade<double>(CacheStorage::kF64);
  expect_cascade<BFloat16>(CacheStorage::kBF16);
}

}  // namespace
}  // namespace qkv::test
