// Attention over keys that are cut over ranks is merge_attention of the ranks' parts, on every rank.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "qkv/dist/in_process.h"
#include "qkv/dist/merge.h"
#include "support/checks/expect.h"
#include "support/errors.h"
#include "support/isas.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

template <class T> class MergeRanks : public testing::Test {};
TYPED_TEST_SUITE(MergeRanks, StorageTypes);

// Keys 0..99 on rank 0, 100..129 on rank 1, none on rank 2: decode of one query, and of a few.
TYPED_TEST(MergeRanks, IsTheMergeOfTheParts) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  constexpr int ranks = 3;
  constexpr std::array<Index, ranks + 1> cuts{0, 100, 130, 130};
  for (const Index queries : {1, 5}) {
    const Tensor<T> q = random_tensor<T>({2, 4, queries, 16}, 1), k = random_tensor<T>({2, 2, 130, 16}, 2),
                    v = random_tensor<T>({2, 2, 130, 8}, 3);
    std::vector<Tensor<T>> outs;
    std::vector<Tensor<Sum>> lses;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      outs.push_back(Tensor<T>({2, 4, queries, 8}));
      lses.push_back(Tensor<Sum>({2, 4, queries}));
      const auto keys = [&](const Tensor<T>& x) { return x.template view<4>().sliced(2, cuts[rank], cuts[rank + 1]); };
      attention_forward(q, keys(k), keys(v), {.out = outs[rank], .lse = lses[rank]});
    }
    EXPECT_EQ(lses[2].data()[0], -std::numeric_limits<Sum>::infinity()) << "no keys";
    Tensor<T> out(outs[0].sizes());
    Tensor<Sum> lse(lses[0].sizes());
    merge_attention(std::vector<View<const T, 4>>{outs[0], outs[1], outs[2]},
        std::vector<View<const Sum, 3>>{lses[0], lses[1], lses[2]}, out, lse);
    dist::run_in_process(ranks, [&](dist::Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      dist::merge_over_ranks(transport, outs[rank], lses[rank]);
    });
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(same_bits(outs[rank], out)) << rank;
      EXPECT_TRUE(same_bits(lses[rank], lse)) << rank;
    }
  }
}

TEST(MergeRanks, OtherSizesAreOneErrorOnEveryRank) {
  std::array<std::string, 2> texts;
  dist::run_in_process(2, [&](dist::Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    Tensor<float> out({1, 2, 1, transport.rank() == 0 ? 8 : 4}), lse({1, 2, 1});
    texts[rank] = text_of<Error>([&] { dist::merge_over_ranks(transport, out, lse); });
  });
  EXPECT_EQ(texts[0], texts[1]);
  expect_parts(texts[0], {"out", "[1, 2, 1, 8]", "[1, 2, 1, 4]"});
}

}  // namespace
}  // namespace qkv::test
