// --lang: which language the tool speaks, and that nothing is left in English where it speaks Chinese.
#include <fstream>
#include <regex>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

class Language : public JudgeTest {
 protected:
  static bool chinese(const std::string& text) { return has(text, "练习") || has(text, "公式") || has(text, "用法"); }

  /// Lines with three English words in a row that are neither code nor numbers.
  static std::vector<std::string> english_lines(const std::string& text) {
    static const std::regex prose("(^|[ (])[A-Za-z]?[a-z']+ [a-z']{2,} [a-z']{2,}([ ,.:;)]|$)");
    static const std::regex code(
        R"(>>>|import|\[v|qkv |I like the|^ *(linear|naive|tiled|sparse|mha|v4) |fill in|^(b|s|a)? )");
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (std::regex_search(line, prose) && !std::regex_search(line, code)) found.push_back(line);
    }
    return found;
  }
};

TEST_F(Language, IsTheFirstOfTheEnvironmentThatIsSet) {
  const std::vector<std::pair<Words, bool>> cases{{{"QKV_LANG=zh", "LC_ALL=C.UTF-8", "LC_MESSAGES=", "LANG="}, true},
      {{"QKV_LANG=en", "LC_ALL=zh_CN.UTF-8", "LC_MESSAGES=", "LANG=zh_CN.UTF-8"}, false},
      {{"QKV_LANG=", "LC_ALL=zh_CN.UTF-8", "LC_MESSAGES=", "LANG=en_US.UTF-8"}, true},
      {{"QKV_LANG=", "LC_ALL=en_US.UTF-8", "LC_MESSAGES=zh_CN.UTF-8", "LANG=zh_CN.UTF-8"}, false},
      {{"QKV_LANG=", "LC_ALL=", "LC_CTYPE=", "LC_MESSAGES=zh_CN.UTF-8", "LANG=en_US.UTF-8"}, true},
      {{"QKV_LANG=", "LC_ALL=", "LC_CTYPE=", "LC_MESSAGES=", "LANG=zh_CN.UTF-8"}, true},
      {{"QKV_LANG=", "LC_ALL=", "LC_CTYPE=", "LC_MESSAGES=", "LANG=zh_CN.GB18030"}, false}};
  for (const auto& [settings, is_chinese] : cases)
    EXPECT_EQ(chinese(run("practice", settings).out), is_chinese) << testing::PrintToString(settings);
  const Words zh{"QKV_LANG=zh"};
  EXPECT_FALSE(chinese(run("practice --lang en", zh).out));
  EXPECT_TRUE(chinese(run("practice --lang auto", zh).out));
  EXPECT_TRUE(chinese(run("practice --lang=zh").out));
  EXPECT_TRUE(chinese(run("judge --help", zh).out));
  EXPECT_FALSE(chinese(run("practice --json", zh).out)) << "JSON is English unless --lang says otherwise";
  EXPECT_TRUE(chinese(run("practice --json --lang zh").out));
  EXPECT_EQ(run("practice --lang fr").code, 2);
}

TEST_F(Language, NothingIsLeftInEnglish) {
  for (const char* line : {"practice", "judge --catalogue", "explain", "explain --backward", "forms --length 16",
           "ablate --steps 3", "train --steps 3 --tokens 0", "train --steps 3 --task previous --heads 2 --batch 2",
           "train --steps 3 --heads 2 --cut 0:1 --tokens 0", "train --steps 3 --task same",
           "train --steps 3 --task induction --cut 1:0 --tokens 0", "practice --help", "judge --help", "explain --help",
           "ablate --help", "forms --help", "train --help", "lesson", "lesson --help"}) {
    const Outcome outcome = run(Words(line) + "--lang zh");
    EXPECT_EQ(outcome.err, "") << line;
    EXPECT_EQ(english_lines(outcome.out), std::vector<std::string>()) << line;
  }
  for (const char* task : {"sdpa", "v3", "mha", "backward", "lm"}) {
    const std::string text = output(Words{"practice", task, "--lang", "zh"});
    EXPECT_TRUE(has(text, "评测：")) << text;
    EXPECT_EQ(english_lines(text), std::vector<std::string>());
  }
}

TEST_F(Language, AFindingIsChinese) {
  QKV_NEEDS_PYTHON(python, "numpy");
  std::ofstream(path("mine.py")) << R"(import numpy as np


def sdpa(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2)
    scores = scores if mask is None else np.where(mask, scores, -1e20)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
)";
  const Words mine{"mine.py", "--python", python, "--lang", "zh"};
  const Outcome wrong = judge(mine);
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.out, "错误：no-scale")) << wrong.out;
  EXPECT_TRUE(has(wrong.out, "分数没有除以 sqrt(d)。")) << wrong.out;
  EXPECT_TRUE(has(wrong.out, "期望")) << wrong.out;
  EXPECT_EQ(english_lines(wrong.out), std::vector<std::string>());
  const Outcome hint = judge(mine + "--hint");
  EXPECT_FALSE(has(hint.out, "no-scale")) << hint.out;
  EXPECT_TRUE(has(hint.out, "方差")) << hint.out;
  const auto document = finding(mine);
  EXPECT_EQ(document["mistakes"][0]["says"], "分数没有除以 sqrt(d)。");
  EXPECT_EQ(document["verdict"], "wrong");
}

}  // namespace
}  // namespace qkv::test
