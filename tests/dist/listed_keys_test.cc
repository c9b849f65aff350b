// A sequence cut over ranks under a mask that lists each query's keys: what one machine reads by the lists, every rank
// does.
#include "cut_sequence.h"
#include "support/cases/listed_case.h"

namespace qkv::test {
namespace {

template <class T> class CutLists : public testing::Test {};
TYPED_TEST_SUITE(CutLists, StorageTypes);

const std::vector<ContextParallelOptions> kListCuts = {{.layout = kContiguous, .method = Method::kAllGather},
    {.layout = kZigZag, .method = Method::kAllGather, .block = 1},
    {.layout = kContiguous, .method = Method::kRing, .chunk = 1},
    {.layout = kZigZag, .method = Method::kAllGather, .chunk = 1},
    {.layout = kZigZag, .method = Method::kRing, .block = 1, .chunk = 1},
    {.layout = kZigZag, .method = Method::kUlysses, .block = 1}};

/// Read alone in forward or backward too, by one query, few and many; shared lists and each head's; and lists that are
/// read alone only where heads or rows are not all there.
TYPED_TEST(CutLists, AreTheWhole) {
  using T = TypeParam;
  Worst worst;
  std::vector<AttentionCase> cases{long_list_cases()[0]};
  for (const std::size_t n : {0U, 2U, 3U, 6U, 8U}) cases.push_back(list_cases()[n]);
  for (AttentionCase& each : cases) {
    each.sinks = each.q_len == 70 ? SinkKind::kUniform : SinkKind::kNone;
    expect_cut_is_whole<T>(each, kListCuts, {2, 3}, tested_isas().back(), worst);
  }
  EXPECT_GT(worst.compared(), 100);
  worst.print("lists cut over ranks");
}

// The joined masks filter the lists.
TYPED_TEST(CutLists, OfJoinedMasksAreTheWhole) {
  using T = TypeParam;
  Worst worst;
  AttentionCase each = list_cases()[3];
  each.q_len = each.kv_len, each.mask = MaskKind::kDocuments;
  expect_cut_is_whole<T>(each, kListCuts, {1, 4}, tested_isas().back(), worst);
}

}  // namespace
}  // namespace qkv::test
