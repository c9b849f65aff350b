// Every case of the list, forward, weights and backward, each type, on every instruction set, within computed bounds.
#include <gtest/gtest.h>

#include "support/checks/check_case.h"

namespace qkv::test {
namespace {

/// Prints the worst ratio of error to bound for each output.
template <class T>
void run_cases(const std::vector<AttentionCase>& cases, const char* title) {
  Worst worst;
  for (const AttentionCase& each : cases) check_case<T>(each, worst);
  worst.print(title);
}

TEST(AttentionCases, EdgesF32) { run_cases<float>(edge_cases(), "edges f32"); }
TEST(AttentionCases, EdgesF64) { run_cases<double>(edge_cases(), "edges f64"); }
TEST(AttentionCases, EdgesBf16) { run_cases<BFloat16>(edge_cases(), "edges bf16"); }
TEST(AttentionCases, EdgesF16) { run_cases<Float16>(edge_cases(), "edges f16"); }
// The pairwise list in parts, so that ctest runs them beside one another.
constexpr std::size_t kNumParts = 4;

class Pairwise : public testing::TestWithParam<std::size_t> {
 protected:
  template <class T>
  void run_part(double max_work, const char* title) {
    const std::vector<AttentionCase> all = pairwise_cases(max_work);
    std::vector<AttentionCase> part;
    for (std::size_t n = GetParam(); n < all.size(); n += kNumParts) part.push_back(all[n]);
    ASSERT_FALSE(part.empty());
    run_cases<T>(part, title);
  }
};

TEST_P(Pairwise, F32) { run_part<float>(kPairwiseWork, "pairwise f32"); }
// Smaller: long double, in which the truth about f64 is computed, is slow.
TEST_P(Pairwise, F64) { run_part<double>(6e5, "pairwise f64"); }
TEST_P(Pairwise, Bf16) { run_part<BFloat16>(1e6, "pairwise bf16"); }
TEST_P(Pairwise, F16) { run_part<Float16>(1e6, "pairwise f16"); }
INSTANTIATE_TEST_SUITE_P(AttentionCases, Pairwise, testing::Range<std::size_t>(0, kNumParts));

TEST(AttentionCases, NamesAreUnique) {
  std::set<std::string> names;
  const std::vector<AttentionCase> cases = pairwise_cases();
  for (const AttentionCase& each : cases) names.insert(each.name());
  EXPECT_EQ(names.size(), cases.size());
  std::printf("pairwise list: %zu cases\n", cases.size());
}

}  // namespace
}  // namespace qkv::test
