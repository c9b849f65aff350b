// Ranks that disagree: the same error on all where they have not.
#include "qkv/dist/agree.h"

#include <gtest/gtest.h>

#include <array>

#include "qkv/dist/in_process.h"

namespace qkv::dist {
namespace {

/// The errors of `kRanks` ranks.
constexpr int kRanks = 4;
template <class Call> std::array<std::string, kRanks> mismatches(const Call& call) {
  std::array<std::string, kRanks> texts;
  run_in_process(kRanks, [&](Transport& transport) {
    try {
      call(transport);
    } catch (const MismatchError& error) {
      texts[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts;
}

TEST(Agree, TheSameClaimsPass) {
  for (const int ranks : {1, 4}) {
    run_in_process(ranks, [](Transport& transport) {
      agree(transport, {{"q", "f32 [1, 2, 3, 4]"}, {"causal", "yes"}});
    });
  }
}

TEST(Agree, ADifferenceIsTheSameErrorOnEveryRank) {
  const auto other = [](Transport& t) {
    agree(t, {{"causal", "yes"}, {"q", t.rank() == 2 ? "f32 [1, 8, 4095, 64]" : "f32 [1, 8, 4096, 64]"}});
  };
  EXPECT_EQ(mismatches(other)[3],
      "[dist::agree] every rank must have the same q: rank 0 has f32 [1, 8, 4096, 64], rank 2 has f32 [1, 8, 4095, "
      "64]");
  const auto lacking = [](Transport& t) {
    agree(t, t.rank() == 1 ? std::vector<Claim>{} : std::vector<Claim>{{"dropout", "0.1"}});
  };
  EXPECT_EQ(
      mismatches(lacking)[0], "[dist::agree] every rank must have the same dropout: rank 0 has 0.1, rank 1 has none");
  const auto more = [](Transport& t) {
    agree(t, t.rank() != 3 ? std::vector<Claim>{} : std::vector<Claim>{{"dropout", "0.1"}});
  };
  EXPECT_EQ(
      mismatches(more)[0], "[dist::agree] every rank must have the same dropout: rank 0 has none, rank 3 has 0.1");
}

TEST(Agree, TheInstructionSetIsTheFastestThatAllCanRun) {
  const std::vector<Isa> old{Isa::kScalar, Isa::kAvx2}, current{Isa::kScalar, Isa::kAvx2, Isa::kAvx512};
  run_in_process(kRanks, [&](Transport& transport) {
    const SharedIsa all = agree_on_isa(transport, {}, current);
    EXPECT_EQ(all.isa, Isa::kAvx512);
    EXPECT_EQ(all.note, "");
    const SharedIsa mixed = agree_on_isa(transport, {}, transport.rank() == 2 ? old : current);
    EXPECT_EQ(mixed.isa, Isa::kAvx2);
    EXPECT_EQ(mixed.note, "all ranks use avx2, which is all that rank 2 can run: equal bits need one instruction set");
    const SharedIsa first_is_old = agree_on_isa(transport, {}, transport.rank() == 0 ? old : current);
    EXPECT_EQ(first_is_old.isa, Isa::kAvx2);
    EXPECT_NE(first_is_old.note.find("rank 0"), std::string::npos) << first_is_old.note;
    const SharedIsa wished =
        agree_on_isa(transport, transport.rank() == 1 ? std::optional(Isa::kScalar) : std::nullopt, current);
    EXPECT_EQ(wished.isa, Isa::kScalar);
  });
}

TEST(Agree, WishesThatDoNotFitAreRefused) {
  const std::vector<Isa> old{Isa::kScalar}, current{Isa::kScalar, Isa::kAvx2};
  const auto two = [&](Transport& t) { agree_on_isa(t, t.rank() == 1 ? Isa::kScalar : Isa::kAvx2, current); };
  EXPECT_EQ(mismatches(two)[0],
      "[dist::agree_on_isa] every rank must use one instruction set: rank 0 wants avx2, rank 1 wants scalar");
  const auto cannot = [&](Transport& t) { agree_on_isa(t, Isa::kAvx2, t.rank() == 3 ? old : current); };
  EXPECT_EQ(mismatches(cannot)[0],
      "[dist::agree_on_isa] every rank must run the instruction set that rank 0 wants, avx2: rank 3 runs scalar at "
      "most");
  const auto nothing = [&](Transport& t) { agree_on_isa(t, {}, t.rank() == 3 ? std::vector{Isa::kNeon} : old); };
  EXPECT_NE(mismatches(nothing)[0].find("in common"), std::string::npos);
}

TEST(Agree, EveryRankHearsEveryText) {
  run_in_process(kRanks, [](Transport& transport) {
    const std::string mine(static_cast<std::size_t>(transport.rank()), 'x');
    EXPECT_EQ(texts_of_ranks(transport, mine), (std::vector<std::string>{"", "x", "xx", "xxx"}));
  });
}

}  // namespace
}  // namespace qkv::dist
