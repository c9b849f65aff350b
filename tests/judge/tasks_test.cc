// Probes that are not those of a task are refused; JSON that the judged code's process may have written is understood
// or refused, whatever it holds. What textbooks compute: solutions, and programs by autograd, loops and sums (right/),
// are called right (corpus.py).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "judge/json.h"
#include "judge/task.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

Probe first_probe(const char* name) {
  const Task& task = *find_task(name);
  return task.probes(task.sizes, 0).front();
}

TEST(Tasks, NumbersThatDoNotFitTheirTensorsAreRefused) {
  const std::pair<const char*, std::pair<const char*, std::vector<const char*>>> cases[] = {
      {"cache", {"steps", {"", "5,1", "-1,6", "5,x", "9223372036854775807,1", "x"}}},
      {"flash", {"block", {"", "0", "-3", "x", "1e-300"}}}, {"mha", {"heads", {"0", "-1", "5", "1e300", "nan"}}},
      {"gqa", {"kv_heads", {"0", "7", "1e18"}}}, {"lm", {"steps", {"1e9", "inf"}}}};
  for (const auto& [task, numbers] : cases) {
    Probe probe = first_probe(task);
    for (const char* number : numbers.second) {
      probe.metadata[numbers.first] = number;
      EXPECT_THROW(check_probe(*find_task(task), probe), OptionError) << task << " " << number;
    }
  }
  for (const auto& [task, name] : {std::pair{"lm", "tokens"}, {"paged", "block_table"}, {"cross-entropy", "targets"}}) {
    for (const double token : {-1.0, 1000.0, 1e300, std::nan("")}) {
      Probe probe = first_probe(task);
      probe.inputs[name][3] = token;
      EXPECT_THROW(check_probe(*find_task(task), probe), OptionError) << task << " " << token;
    }
  }
}

TEST(Tasks, TheSmallestSizesHaveProbesOrAreRefused) {
  int made = 0;
  for (const Task& task : tasks()) {
    for (const char* lengths : {R"({"batch": 1, "length": 1})", R"({"batch": 1, "length": 2})"}) {
      try {
        made += static_cast<int>(make_probes(task.name, sizes_of(task.name, lengths)).size());
      } catch (const OptionError&) {  // sizes that the task does not have
      }
    }
  }
  EXPECT_GT(made, 50);
}

TEST(JudgeJson, ADeepTextIsNoFault) {
  constexpr std::size_t kDepth = 1'000'000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  EXPECT_EQ(subject_of(deep).verdict, "failed");
  EXPECT_EQ(subject_of(R"({"task": "sdpa", "sizes": {"embed": )" + deep + "}}").verdict, "failed");
  EXPECT_EQ(subject_of(R"({"task": "sdpa", "line": )" + deep + "}").verdict, "");
  EXPECT_THROW(sizes_of("sdpa", deep), OptionError);
  Finding finding;
  set_line(finding, R"({"line": 1, "source": )" + deep + "}");
  EXPECT_EQ(finding.line, 1);
}

TEST(JudgeJson, TheLargestLineIsNoFault) {
  Finding finding;
  set_line(finding, R"({"line": 2147483647, "first": 2147483647, "source": ["a", "b"]})");
  EXPECT_NE(finding.where.find("2147483648 | b"), std::string::npos) << finding.where;
}

}  // namespace
}  // namespace qkv::judge
