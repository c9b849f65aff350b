// Relevance maps (weights times gradient, only what is above 0): held against the same made by
// plain loops from the whole rows of a capture without them.
#include <gtest/gtest.h>

#include "support/checks/check_capture.h"

namespace qkv::test {
namespace {

template <class T> class Relevance : public testing::Test {};
TYPED_TEST_SUITE(Relevance, StorageTypes);

/// More than two items of queries, and chunks of keys, of which some are masked.
AttentionCase relevance_case(MaskKind mask, std::uint64_t seed) {
  AttentionCase made{2, 4, 2, 45, 131, 12, 7, mask};
  made.dropout = seed % 2 == 0 ? 0.3 : 0, made.seed = seed;
  return made;
}

/// Captures are made of the entries [B, results, Tq, Tk]: rows and the largest to the bit, sums of at most 45 x
/// 131 in any order.
template <class Sum> void expect_of(const Tensor<double>& entries, Capture what, const CaptureResult& found) {
  what.heads.clear();  // entries are of those that were asked for
  Tensor<double> sizes = entries.clone();
  for (double& x : sizes.span()) x = std::abs(x);
  const Captured<double> exact(entries, what), size(sizes, what);
  for (std::size_t n = 0; n < kNumSums; ++n) {
    const Tensor<double>&got = *numbers_of(found)[n], &wanted = *exact.numbers()[n];
    ASSERT_EQ(got.sizes(), wanted.sizes());
    for (Index e = 0; e < got.count(); ++e) {
      const double near = n == 0 ? 0 : 45 * 131 * std::numeric_limits<Sum>::epsilon() * size.numbers()[n]->data()[e];
      ASSERT_NEAR(got.data()[e], wanted.data()[e], near) << kSumNames[n] << " " << e;
    }
  }
  CaptureResult all;
  all.rows = entries.clone();
  const View<const double, 4> e = entries;
  expect_largest(found, all, what, e.size(1), [&](Index b, Index h, Index i, Index j) { return e(b, h, i, j) != 0; });
}

TYPED_TEST(Relevance, IsMadeFromTheRowsOfEveryHead) {
  std::uint64_t seed = 0;
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausalBottomRight, MaskKind::kKeepDense}) {
    const Problem<TypeParam> problem(relevance_case(mask, ++seed));
    for_each_isa(2, [&](Context& context) {
      Result<TypeParam> result(problem);
      result.run_forward(problem, context);
      Capture what{.rows = {44, 0, 17}, .top_k = 5, .column_mass = true, .map_rows = 4, .map_columns = 9};
      if (seed != 2) what.heads = {3, 1, 0};
      what.of = CaptureOf::kGradient;
      const Capture plain = with_all_rows(problem, what);
      what.positive = true;
      CaptureResult entries, found;
      backward_with(problem, result, plain, entries, context);
      const Tensor<TypeParam> dq = copy_as<TypeParam>(result.gradients.views[0]);
      backward_with(problem, result, what, found, context);
      EXPECT_TRUE(same_bits(copy_as<TypeParam>(result.gradients.views[0]), dq)) << "the capture changed the answer";
      for (double& x : entries.rows.span()) x = std::max(x, 0.0);
      expect_of<Accumulator<TypeParam>>(entries.rows, what, found);
    });
  }
}

TEST(RelevanceErrors, OfWeightsItIsRefused) {
  const Tensor<float> q({1, 2, 3, 4});
  Tensor<float> out({1, 2, 3, 4}), lse({1, 2, 3});
  CaptureResult found;
  Capture positive{.top_k = 1};
  positive.positive = true;
  EXPECT_THROW(attention_forward(q, q, q, {.out = out, .lse = lse}, {.capture = {positive, found}}), UnsupportedError);
}

}  // namespace
}  // namespace qkv::test
