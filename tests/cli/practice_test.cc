// qkv practice: the ladder, skeletons and solutions.
#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Practice : public JudgeTest {};

TEST_F(Practice, ListsTheLadderInItsOrder) {
  const std::string text = output({"practice"});
  std::size_t at = 0;
  for (const char* name :
      {"one-row", "softmax", "sdpa", "v1", "v4", "mha", "layernorm", "lm", "gqa", "cache", "merge", "backward"}) {
    const std::size_t next = text.find(std::string("  ") + name + " ", at);
    ASSERT_NE(next, std::string::npos) << name;
    at = next;
  }
  EXPECT_TRUE(has(text, "qkv judge"));
  const Document mha = json({"practice", "mha", "--json"});
  EXPECT_EQ(mha["functions"][0], "mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None)");
  EXPECT_EQ(mha["classes"][0], "MultiHeadAttention(embed_dim, num_heads)");
  const Document list = json({"practice", "--json"});
  EXPECT_EQ(list.size(), 38u);
  for (const Document& task : list) {
    EXPECT_TRUE(has(text, task["name"])) << task;
    EXPECT_FALSE(task["teaches"].get<std::string>().empty()) << task;
    EXPECT_FALSE(task["functions"].empty() && task["classes"].empty()) << task;
    EXPECT_FALSE(task["languages"].empty()) << task;
  }
}

TEST_F(Practice, NextWritesTheFirstThatIsNotDoneAndKeepsAFileThatIsThere) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const Words state = {"XDG_STATE_HOME=" + path("state").string()};
  const auto next = [&] { return run({"practice", "next", "--numpy"}, state).out; };
  EXPECT_TRUE(has(next(), "one_row.py"));
  EXPECT_TRUE(contents(path("one_row.py")).starts_with("# qkv practice one-row"));
  write("one_row.py", "mine");
  EXPECT_TRUE(has(next(), "one_row.py"));
  EXPECT_EQ(contents(path("one_row.py")), "mine");
  write("one_row.py", output({"practice", "one-row", "--numpy", "--solution"}));
  // Right at once: watching ends, and the exercise is done.
  EXPECT_TRUE(has(run({"practice", "--watch", "one_row.py", "--python", python}, state).out, "right"));
  EXPECT_TRUE(has(run({"practice"}, state).out, "(done)"));
  EXPECT_TRUE(has(next(), "softmax.py"));
  std::filesystem::remove(path("softmax.py"));
  std::filesystem::create_directory(path("softmax.py"));
  EXPECT_TRUE(has(run("practice next --numpy", state).err, "\"softmax.py\": is a directory"));
}

TEST_F(Practice, AMockInterviewDrawsThreeFilesAndEndsWithItsTime) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const Outcome mock =
      run({"practice", "--mock", "0.001m", "--python", python}, {"XDG_STATE_HOME=" + path("state").string()});
  EXPECT_EQ(mock.code, 1) << mock.err;
  EXPECT_EQ(std::ranges::count_if(files(), [](const std::string& name) { return name.ends_with(".py"); }), 3);
  expect_refused({"practice", "--mock", "soon"}, {"45m"});
  expect_refused({"practice", "--watch", "none.py"}, {"no such file"});
  expect_refused({"practice", "--watch", "tmp"}, {"--watch \"tmp\": is a directory"});
}

TEST_F(Practice, NextInCppIsAFileOfCpp) {
  const Words state = {"XDG_STATE_HOME=" + path("state").string()};
  const Outcome next = run({"practice", "next", "--cpp"}, state);
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_TRUE(has(contents(path("sdpa.cc")), "#include")) << next.out;
  EXPECT_TRUE(has(next.out, "qkv judge --run './sdpa {in} {out}' --task sdpa")) << next.out;
  // A program beside its printed source that answers right: the exercise is done.
  const auto solved = std::filesystem::path(QKV_TOOL).parent_path() / "tests/exercises/qkv_exercise_sdpa";
  if (!std::filesystem::exists(solved)) GTEST_SKIP() << "the exercises in C++ were not built";
  std::filesystem::copy(solved, path("sdpa"));
  EXPECT_EQ(run({"judge", "--run", "./sdpa {in} {out}", "--task", "sdpa"}, state).code, 0);
  EXPECT_FALSE(has(run({"practice", "next", "--cpp"}, state).out, "sdpa"));
}

TEST_F(Practice, AnExerciseWithoutTheLanguageIsPassedOver) {
  std::filesystem::create_directories(path("state/qkv"));
  std::string done;
  for (const Document& task : json({"practice", "--json"})) {
    if (task["name"] == "backward") break;
    done += task["name"].get<std::string>() + "\n";
  }
  write("state/qkv/practice", done);
  const Outcome next = run({"practice", "next", "--torch"}, {"XDG_STATE_HOME=" + path("state").string()});
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_FALSE(has(next.out, " backward.py")) << next.out;
}

TEST_F(Practice, WhatSaysNothingIsRefused) {
  for (const char* option : {"--json", "--solution"})
    expect_refused({"practice", "next", option}, {option, "leave it out"});
  for (const Words& more : {Words{"--hint"}, {"--python", "python3"}})
    expect_refused(Words{"practice", "v3"} + more, {more[0], "--watch"});
  expect_refused("practice --watch a.py --mock 45m", {"--watch", "--mock"});
  expect_refused("practice --watch a.py --numpy", {"--numpy", "leave it out"});
  expect_refused("practice --mock 45m --cpp", {"--cpp", "leave it out"});
  expect_refused("practice --mock 1m --python ./none", {"--python", "none"});
}

TEST_F(Practice, ItsPageHasTheSameArticles) {
  const std::string page = contents(repository() / "docs/practice.md");
  int number = 0;
  for (const Document& task : json({"practice", "--json"})) {
    const std::string row = "| " + std::to_string(++number) + " | `" + task["name"].get<std::string>() + "` | ";
    const std::size_t at = page.find(row);
    ASSERT_NE(at, std::string::npos) << row;
    const std::size_t article = page.find(" | ", at + row.size()) + 3;
    EXPECT_EQ(page.substr(article, page.find(" |", article) - article), task["article"].get<std::string>()) << row;
  }
}

/// "## Scale, soft cap, bias" -> "scale-soft-cap-bias".
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ' || c == '-') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) anchor += static_cast<char>(std::tolower(c));
  }
  return anchor;
}

TEST_F(Practice, EveryMistakeHasAFormulaOfItsTaskAndAPageThatExists) {
  std::set<std::string> pages;
  for (const Document& task : json({"practice", "--json"})) {
    for (const Document& entry : json({"judge", "--catalogue", "--task", task["name"], "--json"})) {
      const std::string formula = entry["formula"], part = entry["part"], read = entry["read"];
      SCOPED_TRACE(task["name"].get<std::string>() + ": " + entry["id"].get<std::string>() + ": " + formula);
      EXPECT_TRUE(has(formula, part));
      EXPECT_FALSE(task["name"] == "linear" && has(formula, "softmax"));
      EXPECT_TRUE(task["name"] != "backward" || entry["term"] != "softmax" || has(part, "dS = "));
      ASSERT_TRUE(has(read, "docs/"));
      pages.insert(read.substr(read.find("docs/")));
    }
  }
  for (const std::string& page : pages) {
    const std::size_t hash = page.find('#');
    std::istringstream lines(contents(repository() / page.substr(0, hash)));
    bool found = hash == std::string::npos && lines.rdbuf()->in_avail() > 0;
    for (std::string line; std::getline(lines, line) && !found;)
      found = line.starts_with("## ") && anchor_of(line.substr(3)) == page.substr(hash + 1);
    EXPECT_TRUE(found) << page;
  }
}

TEST_F(Practice, ASkeletonIsItsSolutionWithoutTheSolvedLines) {
  int count = 0;
  for (const Document& task : json({"practice", "--json"})) {
    for (const std::string language : task["languages"]) {
      SCOPED_TRACE(task["name"].get<std::string>() + " in " + language);
      const std::string skeleton = output({"practice", task["name"], "--" + language});
      const std::string solution = output({"practice", task["name"], "--" + language, "--solution"});
      EXPECT_NE(skeleton, solution);
      EXPECT_TRUE(has(
          skeleton, language == "cpp" ? "throw std::logic_error(\"fill in" : "raise NotImplementedError(\"fill in"));
      EXPECT_FALSE(has(solution, "rror(\"fill in"));
      const std::string first = skeleton.substr(0, skeleton.find('\n'));
      EXPECT_EQ(first, solution.substr(0, solution.find('\n')));
      EXPECT_TRUE(has(first, "qkv practice " + task["name"].get<std::string>() + " --" + language)) << first;
      EXPECT_TRUE(has(first, "qkv judge ")) << first;
      EXPECT_FALSE(has(skeleton + solution, "# solution") || has(skeleton + solution, "// solution"));
      ++count;
    }
  }
  EXPECT_GE(count, 1);
  const std::string skeleton = output({"practice", "sdpa", "--numpy"});
  EXPECT_TRUE(has(skeleton, "\n\n\ndef sdpa(q, k, v, mask=None):\n    raise NotImplementedError(\"fill in: "))
      << skeleton;
}

// In Python: tests/judge/corpus.py --exercises.
TEST_F(Practice, SolutionsInCppAreRightAndSkeletonsUnfilled) {
  int count = 0;
  for (const Document& task : json({"practice", "--json"})) {
    const auto languages = task["languages"].get<Words>();
    if (std::ranges::find(languages, "cpp") == languages.end()) continue;
    const std::string name = task["name"];
    for (const bool solved : {true, false}) {
      SCOPED_TRACE(name + (solved ? ", solved" : ", to fill in"));
      const std::string program = "'" QKV_EXERCISES "/qkv_exercise_" + name + (solved ? "'" : "_skeleton'");
      const Document found = finding({"--run", program + " {in} {out}", "--task", name});
      EXPECT_TRUE(
          solved ? found["verdict"] == "right" || found["verdict"] == "convention" : found["verdict"] == "unfilled")
          << found.dump(1);
      ++count;
    }
  }
  EXPECT_GE(count, 10);
  // A program of another language is wrong by name too: without a mask where all are causal.
  const Document wrong = finding({"--run", "'" QKV_EXERCISES "/qkv_exercise_sdpa' {in} {out}", "--task", "causal"});
  EXPECT_EQ(wrong["verdict"], "wrong") << wrong.dump(1);
  EXPECT_EQ(wrong["mistakes"][0]["id"], "no-causal") << wrong.dump(1);
}

TEST_F(Practice, RefusesWhatItDoesNotHave) {
  expect_refused({"practice", "nonsense"}, {"\"nonsense\"", "sdpa", "lm"});
  expect_refused("practice sdpa --numpy --cpp", {"--numpy, --torch and --cpp", "one"});
  expect_refused({"practice", "--solution"}, {"--solution", "name"});
  expect_refused("practice sdpa --json --numpy", {"--json"});
  expect_refused({"practice", "v1", "--cpp"}, {"v1", "--cpp", "torch, numpy"});
}

}  // namespace
}  // namespace qkv::test
