// Sentences in another language, and lines of Han text.
#include "core/sentences.h"

#include <gtest/gtest.h>

#include "core/escape.h"

namespace qkv {
namespace {

Sentences some() {
  Sentences sentences;
  sentences.add_pairs(
      "# a comment\n"
      "= The scores are not divided by sqrt(d).\n分数没有除以 sqrt(d)。\n\n"
      "= The heads of {of} are split.\n{of} 被拆分。\n"
      "= {} apart\n相差 {}\n"
      "= outputs {} apart\n输出相差 {}\n"
      "= {a} of {b} rows{s}\n{b} 行中的 {a} 行\n"
      "= checks: {of}\n检查：{of}\n"
      "= failed: {said}\n失败：{said}\n"
      "= one token\n一个词元\n= read:\n参考：\n");
  return sentences;
}

TEST(Sentences, AreLookedUpWholeOrByTheirMarks) {
  const Sentences sentences = some();
  EXPECT_EQ(sentences.said("The scores are not divided by sqrt(d)."), "分数没有除以 sqrt(d)。");
  EXPECT_EQ(sentences.said("  one token "), "  一个词元 ");
  EXPECT_EQ(sentences.said("  read: "), "  参考：") << "a wide mark needs no blank behind it";
  EXPECT_EQ(sentences.said("3 of 7 rows"), "7 行中的 3 行");
  EXPECT_EQ(sentences.said("3 of 7 rows!"), "7 行中的 3 行");
  EXPECT_EQ(sentences.said("0.5 apart"), "相差 0.5");
}

TEST(Sentences, OfSeveralPatternsTheMostExactCounts) { EXPECT_EQ(some().said("outputs 2 apart"), "输出相差 2"); }

TEST(Sentences, PartsOfAListAreTranslatedToo) {
  EXPECT_EQ(some().said("The heads of q, k and v are split."), "q、k 和 v 被拆分。");
  EXPECT_EQ(some().said("The heads of k are split."), "k 被拆分。");
  EXPECT_EQ(some().said("checks: plain, one token"), "检查：plain、一个词元");
  EXPECT_EQ(some().said("failed: one token"), "失败：一个词元");
  EXPECT_EQ(some().said("failed: a, b and one token"), "失败：a, b and one token") << "no list";
}

TEST(Sentences, OthersStayAsTheyAre) {
  for (const char* text : {"", " ", "nothing of this", "one token\n", "one\ntoken", "{} of", "part"})
    EXPECT_EQ(some().said(text), text);
}

TEST(Sentences, AreOfOneThreadWhileItSpeaks) {
  const Sentences sentences = some();
  EXPECT_EQ(said("one token"), "one token");
  {
    const Speaking chinese(&sentences);
    EXPECT_EQ(said("one token"), "一个词元");
    const Speaking english(nullptr);
    EXPECT_EQ(said("one token"), "one token");
  }
  EXPECT_EQ(said("one token"), "one token");
}

TEST(Wrapped, BreaksBetweenHanCharactersAndNotBeforeClosingMarks) {
  EXPECT_EQ(columns_of("分数 qk"), 7U);
  EXPECT_EQ(wrapped("分数没有除以", 0, 8), "分数没有\n除以");
  EXPECT_EQ(wrapped("分数没有，除以", 0, 8), "分数没\n有，除以");
  EXPECT_EQ(wrapped("应除以（即 sqrt(d)）。分数", 2, 14), "  应除以（即\n  sqrt(d)）。\n  分数");
  EXPECT_EQ(wrapped("算成了 k q^T，应为 q k^T。", 0, 12), "算成了 k\nq^T，应为 q\nk^T。");
  EXPECT_EQ(wrapped("a bc  d", 1, 80), " a bc  d");
  EXPECT_EQ(wrapped("aa bb cc", 0, 5), "aa bb\ncc");
}

}  // namespace
}  // namespace qkv
