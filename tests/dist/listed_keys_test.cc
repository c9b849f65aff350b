// A sequence cut over ranks under a mask that lists each query's keys: what one machine reads by the lists, every rank does.
#include "cut_sequence.h"
#include "support/cases/listed_case.h"

namespace qkv::test {
namespace {

template <class T>
class CutLists : public testing::Test {};
TYPED_TEST_SUITE(CutLists, StorageTypes);

const std::vector<ContextParallelOptions> kListCuts = {{.layout = kContiguous, .method = Method::kAllGather},
                                                       {.layout = kZigZag, .method = Method::kAllGather, .block = 1},
                                                       {.layout = kContiguous, .method = Method::kRing, .chunk = 1},
                                                       {.layout = kZigZag, .method = Method::kAllGather, .chunk = 1},
                                                       {.layout = kZigZag, .method = Method::kRing, .block = 1, .chunk = 1},
                                                       {.layout = kZigZag, .method = Method::kUlysses, .block = 1}};

/// Read alone in forward or backward too, by one query, few and many; shared lists and each head's; and lists that are read alone
/// only where heads or rows are not all there.
TYPED_TEST(CutLists, AreTheWhole) {
  using T = TypeParam;
  Worst worst;
  std::vector<ListShape> shapes{{1, 2, 2, 40, 128, 16, 16, 1, 50}, {1, 8, 4, 70, 260, 24, 24, 2, 15}};
  for (const std::size_t n : {0, 2, 3, 6, 8}) shapes.push_back(kListShapes[n]);
  for (const ListShape& s : shapes) {
    AttentionCase made = s.as_case();
    made.sinks = s.q_len == 70 ? SinkKind::kUniform : SinkKind::kNone;
    expect_cut_is_whole<T>(ListedProblem<T>(s, made), kListCuts, {2, 3}, tested_isas().back(), worst);
  }
  EXPECT_GT(worst.compared(), 100);
  worst.print("lists cut over ranks");
}

// The joined masks filter the lists, and deal the rows.
TYPED_TEST(CutLists, OfJoinedMasksAreTheWhole) {
  using T = TypeParam;
  Worst worst;
  const ListShape s{2, 4, 2, 200, 200, 16, 16, 2, 12};
  const Mask causal_documents = Mask::causal() & Mask::documents(std::vector<Index>{0, 70, 71, 200});
  const AttentionCase made = s.as_case();
  expect_cut_is_whole<T>(ListedProblem<T>(s, made, &causal_documents), kListCuts, {1, 4}, tested_isas().back(), worst);
  const Mask documents = Mask::documents(std::vector<Index>{0, 70, 71, 200});
  std::vector<ContextParallelOptions> by_mask;
  for (const Method method : {Method::kAllGather, Method::kRing, Method::kUlysses})
    by_mask.push_back({.layout = dist::Layout::kByMask, .method = method, .block = 8, .mask = documents});
  expect_cut_is_whole<T>(ListedProblem<T>(s, made, &documents), by_mask, {2}, tested_isas().back(), worst);
}

}  // namespace
}  // namespace qkv::test
