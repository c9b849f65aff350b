// Exercises of qkv practice through the tool: solutions are right, what a person gets is unfilled.
#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Exercises : public JudgeTest {
 protected:
  /// Tasks that have a file in this language.
  std::vector<std::string> tasks_in(const std::string& language) const {
    std::vector<std::string> names;
    for (const Document& task : json({"practice", "--json"})) {
      const auto languages = task["languages"].get<Words>();
      if (std::ranges::find(languages, language) != languages.end()) names.push_back(task["name"]);
    }
    EXPECT_FALSE(names.empty());
    return names;
  }

  void expect_judged(const std::string& task, const Words& how, bool solved) const {
    SCOPED_TRACE(task + (solved ? ", solved" : ", to fill in"));
    const Document found = finding(how);
    if (!solved) {
      EXPECT_EQ(found["verdict"], "unfilled") << found.dump(1);
      return;
    }
    EXPECT_TRUE(found["verdict"] == "right" || found["verdict"] == "convention") << found.dump(1);
    EXPECT_EQ(found["task"], task);
  }

  void judge_python(const std::string& language, const std::string& python, bool solved) const {
    for (const std::string& task : tasks_in(language)) {
      Words words{"practice", task, "--" + language};
      if (solved) words.push_back("--solution");
      write("mine.py", output(words));
      expect_judged(task, {"mine.py", "--python", python}, solved);
    }
  }
};

// In PyTorch too: tests/judge/corpus.py --exercises, which imports it twice and not once an exercise.
TEST_F(Exercises, SolvedInNumPy) {
  QKV_NEEDS_PYTHON(python, "numpy");
  judge_python("numpy", python, true);
}

TEST_F(Exercises, InCpp) {
  for (const std::string& task : tasks_in("cpp")) {
    std::string program = std::string(QKV_EXERCISES) + "/qkv_exercise_" + task;
    std::ranges::replace(program.begin() + std::ssize(std::string(QKV_EXERCISES)), program.end(), '-', '_');
    for (const bool solved : {true, false}) {
      const std::string file = "'" + program + (solved ? "'" : "_skeleton'");
      expect_judged(task, {"--run", file + " {in} {out}", "--task", task}, solved);
    }
  }
}

}  // namespace
}  // namespace qkv::test
