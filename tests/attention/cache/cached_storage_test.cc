// Caches in fewer bits than the queries, against the reference on what is stored and against what rounding may cost.
#include <gtest/gtest.h>

#include <cmath>

#include "dispatch/kernels.h"
#include "support/checks/check_cached.h"

namespace qkv::test {
namespace {

/// Float queries on what a cache has stored in fewer bits: the reference on the stored numbers is the truth.
TEST(CachedAttentionStorage, IsExactForWhatIsStored) {
  for (const CacheStorage storage : {CacheStorage::kBF16, CacheStorage::kF16, CacheStorage::kInt8}) {
    Worst worst;
    for (const AttentionCase& each : cached_shapes()) {
      const std::vector<Index> lengths(static_cast<std::size_t>(each.batch), each.kv_len);
      check_cached<float>(each, CacheKind::kPages16, storage, lengths, 2, worst);
    }
    worst.print("cache storage");
  }
}

/// The cost of 8 bits, by the bound of an element: a score moves by at most delta = max_j |scale| |q|_1 max|k_j| / 254,
/// a weight by a factor within exp(+-2 delta), and a value by max|v_j| / 254.
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

}  // namespace
}  // namespace qkv::test
