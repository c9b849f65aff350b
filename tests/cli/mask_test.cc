// `qkv mask`: expressions to drawings and counts, against predicates; and errors with the position of what cannot be
// read.
#include <algorithm>
#include <cstdlib>
#include <functional>

#include "cli/tool.h"

namespace qkv::test {
namespace {

class MaskTool : public ToolTest {
 protected:
  /// The drawing as --json gives it, of one sequence and head.
  nlohmann::json drawn(const std::string& expression, Index q_len, Index kv_len, const Words& more = {}) {
    const Words words =
        Words{"mask", expression, "--tq", std::to_string(q_len), "--tk", std::to_string(kv_len), "--draw", "--json"} +
        more;
    return nlohmann::json::parse(output(words));
  }
};

TEST_F(MaskTool, WordsAreTheirPredicates) {
  using Keep = std::function<bool(Index, Index)>;
  struct Spelling {
    const char* words;
    Index q_len, kv_len;
    Keep keep;
  };
  const std::vector<Spelling> spellings = {{"all", 3, 5, [](Index, Index) { return true; }},
      {"causal", 6, 6, [](Index i, Index j) { return j <= i; }},
      {"causal(top-left)", 3, 6, [](Index i, Index j) { return j <= i; }},
      {"causal(bottom-right)", 3, 6, [](Index i, Index j) { return j <= i + 3; }},
      {"causal(-1)", 3, 6, [](Index i, Index j) { return j <= i - 1; }},
      {"window(1,-1)", 6, 6, [](Index i, Index j) { return j >= i - 1; }},
      {"window(1, 2, bottom-right)", 4, 6, [](Index i, Index j) { return j >= i + 1 && j <= i + 4; }},
      {"window(1,0; 2)", 4, 6, [](Index i, Index j) { return j >= i + 1 && j <= i + 2; }},
      {"sliding(2)", 6, 6, [](Index i, Index j) { return j <= i && j >= i - 1; }},
      {"dilated(3)", 7, 7, [](Index i, Index j) { return std::abs(i - j) % 3 == 0; }},
      {"chunked(4)", 9, 9, [](Index i, Index j) { return i / 4 == j / 4; }},
      {"chunked(2; 1)", 6, 6, [](Index i, Index j) { return (i + 1) / 2 == (j + 1) / 2; }},
      {"key_lengths(4)", 3, 6, [](Index, Index j) { return j < 4; }},
      {"key_starts(4)", 3, 6, [](Index, Index j) { return j >= 4; }},
      {"query_lengths(2)", 3, 6, [](Index i, Index) { return i < 2; }},
      {"causal | prefix(2)", 5, 5, [](Index i, Index j) { return j <= i || j < 2; }},
      {"(window(2,0) | first(1)) & causal", 8, 8, [](Index i, Index j) { return j <= i && (j >= i - 2 || j == 0); }},
      {"causal & window(2,0) | first(1)", 8, 8, [](Index i, Index j) { return (j <= i && j >= i - 2) || j == 0; }},
      {"global_rows(1,4) | global_columns(0)", 6, 6, [](Index i, Index j) { return i == 1 || i == 4 || j == 0; }},
      {"documents(0,2,6)", 6, 6, [](Index i, Index j) { return (i < 2) == (j < 2); }},
      {"documents(0,2,4; 0,3,7)", 4, 7, [](Index i, Index j) { return (i < 2) == (j < 3); }},
      {"documents(0,2,4; 0,3,7; causal(bottom-right))", 4, 7,
          [](Index i, Index j) { return i < 2 ? j < 3 && j <= i + 1 : j >= 3 && j - 3 <= i - 2 + 2; }},
      {"document_ids(0,1,0,-1)", 4, 4, [](Index i, Index j) { return i % 2 == j % 2 && i != 3 && j != 3; }},
      {"keys(0,2)", 3, 4, [](Index, Index j) { return j == 0 || j == 2; }},
      {"keys(3,0; -1; 1)", 3, 4, [](Index i, Index j) { return i == 0 ? j % 3 == 0 : i == 2 && j == 1; }},
      {"document_ids(0,1; 1,0,0)", 2, 3, [](Index i, Index j) { return (i == 0) == (j > 0); }}};
  for (const Spelling& one : spellings) {
    SCOPED_TRACE(one.words);
    const nlohmann::json document = drawn(one.words, one.q_len, one.kv_len);
    Index kept = 0;
    for (Index i = 0; i < one.q_len; ++i) {
      for (Index j = 0; j < one.kv_len; ++j) {
        const bool keep = one.keep(i, j);
        kept += keep ? 1 : 0;
        EXPECT_EQ(document["drawing"][0][0][static_cast<std::size_t>(i)][static_cast<std::size_t>(j)], keep ? 1 : 0)
            << i << j;
      }
    }
    EXPECT_EQ(document["kept"], static_cast<double>(kept));
    EXPECT_EQ(document["pairs"], static_cast<double>(one.q_len * one.kv_len));
  }
}

TEST_F(MaskTool, DrawsRowsOfZerosAndOnes) {
  const std::string text = output({"mask", "causal & window(1,0) | first(1)", "--tq", "4", "--draw"});
  EXPECT_TRUE(text.starts_with("1 0 0 0\n1 1 0 0\n1 1 1 0\n1 0 1 1\n")) << text;
  EXPECT_NE(text.find("causal() & window(1, 0) | first(1)"), std::string::npos) << text;
  EXPECT_NE(text.find("9 of 16 pairs kept (56.25 %)"), std::string::npos) << text;
  const std::string two = output({"mask", "key_lengths(1,2)", "--tq", "1", "--tk", "2", "--batch", "2", "--draw"});
  EXPECT_TRUE(two.starts_with("sequence 0, head 0\n1 0\nsequence 1, head 0\n1 1\n")) << two;
  EXPECT_EQ(output("mask causal --out mask.png").find("wrote mask.png") == std::string::npos, false);
  EXPECT_TRUE(contents(path("mask.png")).starts_with("\x89PNG"));
}

TEST_F(MaskTool, CountsLargeMasksWithoutDrawingThem) {
  const nlohmann::json document =
      nlohmann::json::parse(output({"mask", "(window(255,0) | first(4)) & causal", "--tq", "20000", "--json"}));
  // Row i keeps min(i + 1, 256) keys of the window, and of the first four those before it.
  double kept = 0;
  for (Index i = 0; i < 20000; ++i)
    kept += static_cast<double>(std::min<Index>(i + 1, 256) + std::clamp<Index>(i - 255, 0, 4));
  EXPECT_EQ(document["kept"], kept);
  EXPECT_GT(document["tiles"]["skipped"], 20 * document["tiles"]["partial"].get<Index>());
}

TEST_F(MaskTool, WhatCannotBeReadNamesItsPlace) {
  const auto refused = [&](const std::string& expression, std::initializer_list<const char*> parts) {
    expect_refused({"mask", expression}, Words(parts.begin(), parts.end()));
  };
  refused(" ", {"character 2", "where the text ends"});
  refused("caus", {"character 1", "\"caus\"", "causal, window"});
  refused("causal &", {"character 9", "where the text ends"});
  refused("causal first(1)", {"character 8", "'&', '|' or the end"});
  refused("(causal", {"character 8", "')'"});
  refused("causal & window(1)", {"character 10", "window(LEFT,RIGHT"});
  refused("first(x)", {"character 7", "whole number"});
  refused("first(1", {"character 8", "'"});
  refused("window(-2,0)", {"character 1", "-2"});
  refused("documents(0,3; 0,2; first(1))", {"[Mask::documents]", "first(1)"});
  refused("documents(0,3,2)", {"ascend"});
  refused("first(99999999999999999999)", {"character 7", "whole number"});
  refused(std::string(70, '(') + "causal", {"64"});
  refused("key_lengths(3,4)", {"key_lengths", "2"});
  // Options that would have no effect.
  refused("causal(5,bottom-right)", {"character 1", "causal(OFFSET,...)"});
  refused("window(1,2,top-left; 3)", {"character 1", "window(LEFT,RIGHT; OFFSET,...)"});
  refused("sliding(2,top-left,bottom-right)", {"character 20", "whole number"});
  refused("documents(0,8; causal, window(1,0))", {"character 24", "'&'"});
  // Numbers whose sums would overflow.
  refused("global_rows(9223372036854775807)", {"position", "9223372036854775807"});
  refused("documents(0,9223372036854775807)", {"[Mask::documents]", "9223372036854775807"});
  refused("documents(0,100000000000)", {"Tq 8", "100000000000"});
  refused("keys(1,1)", {"once"});
  refused("keys(-5)", {"-5"});
  refused("keys(1; 2; 0)", {"EXPR", "character 1", "one list or one for each of the 8 queries"});
  for (const char* alone : {"causal", "window(1,0)", "sliding(2)", "dilated(2)", "chunked(2)", "chunked(2; 1)"}) {
    expect_refused({"mask", alone, "--tk", "9"}, {"character 1", "bottom-right", "Tq 8", "Tk 9"});
  }
  output({"mask", "documents(0,4,8; 0,4,9; causal(top-left))", "--tk", "9"});
  expect_refused("mask causal --tq 300 --draw", {"--draw", "200", "--out"});
  expect_refused("mask causal --tq 100000 --out a.png", {"drawing", "100000"});
}

}  // namespace
}  // namespace qkv::test
