// Caches in fewer bits than the queries, against the reference on what is stored and against what rounding may cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/kernels.h"
#include "support/checks/check_cached.h"

namespace qkv::test {
namespace {

/// Float queries on what a cache has stored in fewer bits: the reference on the stored numbers is the truth.
TEST(CachedAttentionStorage, IsExactForWhatIsStored) {
  for (const CacheStorage storage :
      {CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8, CacheStorage::kInt4}) {
    Worst worst;
    for (const AttentionCase& each : cached_shapes()) {
      const std::vector<Index> lengths(static_cast<std::size_t>(each.batch), each.kv_len);
      check_cached<float>(each, CacheKind::kPages16, storage, lengths, 2, worst);
    }
    worst.print("cache storage");
  }
}

/// What rounding costs, by the cache's own bound: of a number, and of an answer.
TEST(CachedAttentionStorage, AnswersStayWithinTheirBound) {
  for (const Index q_len : {1, 40}) {
    const Problem<float> problem(cached_case(2, q_len, 600, 64, 48, MaskKind::kCausalBottomRight));
    const auto exact = problem.template reference_input<double>().forward();
    const View<const double, 4> exact_out = exact.out;
    const View<float, 4> q = problem.q(), k = problem.k();
    for (const CacheStorage storage :
        {CacheStorage::kF32, CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8, CacheStorage::kInt4}) {
      const KVCache cache = cache_of(CacheKind::kPages16, storage, k, problem.v());
      Tensor<float> stored_k({k.size(1), 600, 64}), stored_v({k.size(1), 600, 48});
      cache.read(0, 0, stored_k, stored_v);
      double number = 0;
      for (Index e = 0; e < k.size(1) * 600 * 64; ++e) {
        number = std::max(number, std::abs(double{stored_k.data()[e]} - double{k.data()[e]}));
      }
      const double most = cache.error_bound().k;
      EXPECT_LE(number, most);
      EXPECT_GE(number, 0.9 * most) << kStorageNames[static_cast<std::size_t>(storage)] << ": the bound is not tight";
      Tensor<double> bound({1, q.size(1), q_len});
      cache.error_bound(q, bound);
      for_each_isa(1, [&](Context& context) {
        const Answer<float> answer(q, cache.key_value(), problem.options, context);
        const View<const float, 4> out = answer.out;
        double worst = 0;
        for (Index h = 0; h < q.size(1); ++h) {
          for (Index i = 0; i < q_len; ++i) {
            const double allowed = bound.data()[h * q_len + i] + 1e-5;
            for (Index d = 0; d < 48; ++d) {
              const double error = std::abs(double{out(0, h, i, d)} - exact_out(0, h, i, d));
              ASSERT_LE(error, allowed);
              worst = std::max(worst, error / allowed);
            }
          }
        }
        std::printf("%s cache, %d queries: worst error/bound %.3f\n", kStorageNames[static_cast<std::size_t>(storage)],
            static_cast<int>(q_len), worst);
      });
    }
  }
}

/// A number that is not finite leaves no bound, whichever it is among the others.
TEST(CachedAttentionStorage, WhatIsNotFiniteHasNoBound) {
  for (const CacheStorage storage :
      {CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8, CacheStorage::kInt4}) {
    for (const Index bad : {0, 40, 95}) {
      Tensor<float> q({1, 1, 1, 48}), k({1, 1, 2, 48}), v({1, 1, 2, 48});
      for (Tensor<float>* t : {&q, &k, &v}) std::ranges::fill(t->span(), 0.5F);
      v.data()[bad] = std::numeric_limits<float>::quiet_NaN();
      KVCache cache({.head_dim = 48, .storage = storage, .capacity = 2});
      cache.append(k, v);
      Tensor<double> bound({1, 1, 1});
      cache.error_bound(q, bound);
      EXPECT_TRUE(std::isnan(bound.data()[0])) << bad;
      EXPECT_TRUE(std::isnan(cache.error_bound().v)) << bad;
      EXPECT_FALSE(std::isnan(cache.error_bound().k)) << bad;
    }
  }
}

/// Two keys whose roundings all go the other way, and values that stay as they are: the bound is nearly reached.
TEST(CachedAttentionStorage, BoundsAreReached) {
  for (const auto& [storage, levels] : {std::pair(CacheStorage::kInt8, 127.0F), std::pair(CacheStorage::kInt4, 7.0F)}) {
    Tensor<float> q({1, 1, 1, 32}), k({1, 1, 2, 32}), v({1, 1, 2, 1}), out({1, 1, 1, 1}), exact({1, 1, 1, 1});
    for (Index d = 0; d < 32; ++d) {
      q.data()[d] = 0.01F;
      k.data()[d] = d == 0 ? levels : 0.4999F;
      k.data()[32 + d] = d == 0 ? levels : 0.5001F;
    }
    v.data()[0] = levels;
    v.data()[1] = -levels;
    KVCache cache({.head_dim = 32, .v_head_dim = 1, .storage = storage, .capacity = 2});
    cache.append(k, v);
    Tensor<double> bound({1, 1, 1});
    cache.error_bound(q, bound, 1.0);
    attention_forward(q, cache.key_value(), {.out = out}, {.scale = 1.0});
    attention_forward(q, k, v, {.out = exact}, {.scale = 1.0});
    const double error = std::abs(double{out.data()[0]} - double{exact.data()[0]}),
                 most = bound.data()[0] - cache.error_bound().v;
    EXPECT_LE(error, most * (1 + 1e-5));
    EXPECT_GE(error, 0.9 * most);
  }
}

}  // namespace
}  // namespace qkv::test
