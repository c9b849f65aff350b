// Every case of the list, forward, weights and backward, each type, on every instruction set, within computed bounds.
#include <gtest/gtest.h>

#include "support/checks/check_case.h"
#include "support/part.h"

namespace qkv::test {
namespace {

/// Prints the worst ratio of error to bound for each output.
template <class T> void run_cases(const std::vector<AttentionCase>& cases, const char* title) {
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
  template <class T> void run_part(double max_work, const char* title) {
    // Every pair of values in f32, whose list has the largest cases; the other types take every third case of theirs.
    const std::vector<AttentionCase> all = part_for<T>(pairwise_cases(max_work), std::is_same_v<T, float> ? 1 : 3);
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

template <class T> class PartOfTheList : public testing::Test {};
TYPED_TEST_SUITE(PartOfTheList, StorageTypes);

TYPED_TEST(PartOfTheList, HoldsEveryValueOfEveryOption) {
  std::array<std::set<std::string>, 13> whole, part;
  const auto add = [](const std::vector<AttentionCase>& cases, std::array<std::set<std::string>, 13>& values) {
    for (const AttentionCase& c : cases) {
      const std::array kinds = {static_cast<int>(c.mask), static_cast<int>(c.bias), static_cast<int>(c.layout),
          static_cast<int>(c.fill), static_cast<int>(c.scale), static_cast<int>(c.empty_row),
          static_cast<int>(c.position), static_cast<int>(c.mod), static_cast<int>(c.cache)};
      for (std::size_t n = 0; n < kinds.size(); ++n) values[n].insert(std::to_string(kinds[n]));
      values[9].insert(std::to_string(c.softcap) + " " + std::to_string(c.dropout));
      values[10].insert(std::to_string(static_cast<int>(c.sinks)));
      values[11].insert(std::to_string(c.num_heads) + " " + std::to_string(c.num_kv_heads));
      values[12].insert(std::to_string(c.head_dim) + " " + std::to_string(c.v_head_dim));
    }
  };
  const std::vector<AttentionCase> all = pairwise_cases(sizeof(TypeParam) == 2 ? 1e6 : 6e5);
  add(all, whole);
  add(part_for<TypeParam>(all, 3), part);
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_EQ(part[n], whole[n]) << "option " << n;
}

TEST(AttentionCases, NamesAreUnique) {
  std::set<std::string> names;
  const std::vector<AttentionCase> cases = pairwise_cases();
  for (const AttentionCase& each : cases) names.insert(each.name());
  EXPECT_EQ(names.size(), cases.size());
  std::printf("pairwise list: %zu cases\n", cases.size());
}

}  // namespace
}  // namespace qkv::test
