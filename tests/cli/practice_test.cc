// qkv practice: the ladder, skeletons and solutions. Not: whether solutions are right (judge_test.cc).
#include <algorithm>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Practice : public ToolTest {};

TEST_F(Practice, ListsTheLadderInItsOrder) {
  const std::string text = output({"practice"});
  std::size_t at = 0;
  for (const char* name : {"sdpa", "v1", "v2", "v3", "v4", "self-attention", "mha", "gqa", "cache", "backward", "lm"}) {
    const std::size_t next = text.find(std::string("  ") + name + " ", at);
    ASSERT_NE(next, std::string::npos) << name;
    at = next;
  }
  EXPECT_TRUE(has(text, "qkv judge"));
  const Document mha = json({"practice", "mha", "--json"});
  EXPECT_EQ(mha["functions"][0], "mha(x, W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, num_heads, mask=None)");
  EXPECT_EQ(mha["classes"][0], "MultiHeadAttention(embed_dim, num_heads)");
  const Document list = json({"practice", "--json"});
  EXPECT_EQ(list.size(), 18u);
  for (const Document& task : list) {
    EXPECT_TRUE(has(text, task["name"])) << task;
    EXPECT_FALSE(task["teaches"].get<std::string>().empty()) << task;
    EXPECT_FALSE(task["functions"].empty() && task["classes"].empty()) << task;
    EXPECT_FALSE(task["languages"].empty()) << task;
  }
}

TEST_F(Practice, ASkeletonIsItsSolutionWithoutTheSolvedLines) {
  int seen = 0;
  for (const Document& task : json({"practice", "--json"})) {
    for (const std::string language : task["languages"]) {
      SCOPED_TRACE(task["name"].get<std::string>() + " in " + language);
      const std::string skeleton = output({"practice", task["name"], "--" + language});
      const std::string solution = output({"practice", task["name"], "--" + language, "--solution"});
      EXPECT_NE(skeleton, solution);
      EXPECT_TRUE(
          has(skeleton, language == "cpp" ? "throw std::logic_error(\"fill in" : "raise NotImplementedError(\"fill in"));
      EXPECT_FALSE(has(solution, "rror(\"fill in"));
      const std::string first = skeleton.substr(0, skeleton.find('\n'));
      EXPECT_EQ(first, solution.substr(0, solution.find('\n')));
      EXPECT_TRUE(has(first, "qkv practice " + task["name"].get<std::string>() + " --" + language)) << first;
      EXPECT_TRUE(has(first, "qkv judge ")) << first;
      for (const char* mark : {"# solution", "# end", "// solution", "// end"}) EXPECT_FALSE(has(skeleton + solution, mark));
      ++seen;
    }
  }
  EXPECT_GE(seen, 1);
}

TEST_F(Practice, ALineOfASkeletonStandsWhereTheSolutionStood) {
  const std::string skeleton = output({"practice", "sdpa", "--numpy"}),
                    solution = output({"practice", "sdpa", "--numpy", "--solution"});
  EXPECT_TRUE(has(skeleton, "\n    raise NotImplementedError(\"fill in: ")) << skeleton;
  EXPECT_TRUE(has(skeleton, "\ndef sdpa(q, k, v, mask=None):\n")) << skeleton;
  EXPECT_TRUE(has(solution, "    return ")) << solution;
}

TEST_F(Practice, RefusesWhatItDoesNotHave) {
  expect_refused({"practice", "nonsense"}, {"\"nonsense\"", "sdpa", "lm"});
  expect_refused({"practice", "sdpa", "--numpy", "--cpp"}, {"--numpy, --torch and --cpp", "one"});
  expect_refused({"practice", "--solution"}, {"--solution", "name"});
  expect_refused({"practice", "sdpa", "--json", "--numpy"}, {"--json"});
  expect_refused({"practice", "v1", "--cpp"}, {"v1", "--cpp", "torch, numpy"});
}

}  // namespace
}  // namespace qkv::test
