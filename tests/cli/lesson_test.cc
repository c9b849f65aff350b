// qkv lesson: every step in both languages, its numbers in its own words, answers and hints, the page.
#include <cmath>
#include <regex>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Lesson : public JudgeTest {
 protected:
  static std::string typed(const Document& numbers) {
    std::string text;
    for (const Document& number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number.get<double>());
    return text;
  }
  Outcome answer(const Document& step, const std::string& numbers, Words more = {}) {
    return run(Words{"lesson", std::to_string(step.at("number").get<int>()), "--answer", numbers} + more);
  }
};

TEST_F(Lesson, TwelveStepsAreListedAndPrinted) {
  const Document all = json("lesson --json"), chinese = json("lesson --json --lang zh");
  ASSERT_EQ(all.at("steps").size(), 12U);
  const std::string list = output("lesson");
  for (std::size_t n = 0; n < 12; ++n) {
    const Document& step = all.at("steps")[n];
    const std::string question = step.at("question"), number = std::to_string(n + 1);
    SCOPED_TRACE(question);
    EXPECT_TRUE(has(list, number + "  " + question)) << list;
    const std::string text = output(Words{"lesson", number});
    EXPECT_TRUE(text.starts_with(number + "  " + question)) << text;
    EXPECT_TRUE(has(text, step.at("command").get<std::string>())) << text;
    for (const std::string exercise : step.at("exercise")) EXPECT_TRUE(has(text, "qkv practice " + exercise)) << text;
    const std::string said = output(Words{"lesson", number, "--lang", "zh"});
    EXPECT_TRUE(has(said, chinese.at("steps")[n].at("question").get<std::string>())) << said;
    EXPECT_FALSE(std::regex_search(said, std::regex("([a-z]{2,} ){5}[a-z]{2,}"))) << said;
    EXPECT_EQ(step.at("pencil").at("answer"), chinese.at("steps")[n].at("pencil").at("answer"));
  }
}

TEST_F(Lesson, ItsStepsDrawTheirNumbers) {
  EXPECT_TRUE(has(output("lesson 4 --draw"), "0.18  0.09  0.73"));
  EXPECT_TRUE(has(output("lesson 7 --draw"), "0.67  0.33  0.00"));
  EXPECT_TRUE(has(output("lesson 10 --draw"), "view: head 0"));
  EXPECT_TRUE(has(output("lesson 11 --draw"), "-0.26 -0.13  0.39"));
}

TEST_F(Lesson, TheAnswerIsNotBesideTheQuestion) {
  EXPECT_FALSE(has(output("lesson 4"), "0.18  0.09  0.73"));
  const std::string right = output("lesson 4 --answer .178,.088,.734");
  EXPECT_TRUE(right.starts_with("Right.\n") && has(right, "0.18  0.09  0.73")) << right;
}

TEST_F(Lesson, AnAnswerIsRightToTwoDigits) {
  const Document all = json("lesson --json");
  for (const Document& step : all.at("steps")) {
    SCOPED_TRACE(step.at("id"));
    Document numbers = step.at("pencil").at("answer");
    EXPECT_EQ(answer(step, typed(numbers)).code, 0);
    const double wanted = numbers[0].get<double>();
    numbers[0] = wanted + 0.0099;
    EXPECT_EQ(answer(step, typed(numbers)).code, 0);
    numbers[0] = wanted + 0.0101;
    EXPECT_EQ(answer(step, typed(numbers)).code, 1);
  }
  EXPECT_TRUE(output("lesson 1 --answer 5/3,1").starts_with("Right.\n"));
  const Document eleven = json("lesson 11 --json"), numbers = eleven.at("pencil").at("answer");
  std::string minus = typed(numbers), dash = minus;
  ASSERT_TRUE(has(minus, "-"));
  for (std::size_t at; (at = minus.find('-')) != std::string::npos;) minus.replace(at, 1, "\u2212");
  for (std::size_t at; (at = dash.find('-')) != std::string::npos;) dash.replace(at, 1, "\u2013");
  for (const std::string& numbers_as_written : {minus, dash}) EXPECT_EQ(answer(eleven, numbers_as_written).code, 0);
}

TEST_F(Lesson, AKnownMistakeHasItsHint) {
  int hints = 0;
  for (const std::string lang : {"en", "zh"}) {
    const Document all = json(Words{"lesson", "--json", "--lang", lang});
    for (const Document& step : all.at("steps")) {
      for (const Document& hint : step.at("pencil").at("hints")) {
        const Outcome outcome = answer(step, typed(hint.at("numbers")), {"--json", "--lang", lang});
        SCOPED_TRACE(hint.dump());
        EXPECT_EQ(outcome.code, 1);
        EXPECT_EQ(Document::parse(outcome.out).at("hint"), hint.at("say"));
        ++hints;
      }
    }
  }
  EXPECT_GE(hints, 2 * 30);
  EXPECT_TRUE(has(run("lesson 4 --answer .178,.088,.5").out, "2 of 3"));
  EXPECT_TRUE(has(run("lesson 4 --answer 18,9,73").out, "percent"));
  EXPECT_TRUE(has(run("lesson 5 --answer 2.67,1.72").out, "not divided by sqrt(d)")) << "computed from two digits";
  EXPECT_TRUE(has(run("lesson 9 --answer 1.8,.9,0").out, "another number"));
  EXPECT_TRUE(has(run("lesson 9 --answer .162,.081,0").out, "multiplied by 1 - p")) << "the nearest of two";
}

TEST_F(Lesson, WrongUseIsOneLine) {
  for (const char* line : {"lesson 13", "lesson 0", "lesson 4 --answer .1,.2", "lesson 4 --answer .1,.2,x",
           "lesson 4 --answer 1,,2", "lesson --answer 1", "lesson 4 --out lesson.html", "lesson --out lesson.txt",
           "lesson 4 --draw --answer .178,.088,.7"}) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << line << outcome.err;
  }
}

TEST_F(Lesson, ThePageIsTheOneOfTheRepository) {
  output(Words{"lesson", "--out", path("lesson.html").string()});
  EXPECT_EQ(contents(path("lesson.html")), contents(repository() / "docs" / "lesson.html"));
}

}  // namespace
}  // namespace qkv::test
