// JSON that the judged code's process may have written: understood or refused, whatever it holds.
#include "judge/json.h"

#include <gtest/gtest.h>

#include <string>

#include "qkv/error.h"

namespace qkv::judge {
namespace {

TEST(JudgeJson, ADeepTextIsNoFault) {
  constexpr std::size_t kDepth = 1'000'000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  EXPECT_EQ(subject_of(deep).verdict, "failed");
  EXPECT_EQ(subject_of(R"({"task": "sdpa", "sizes": {"embed": )" + deep + "}}").verdict, "failed");
  EXPECT_EQ(subject_of(R"({"task": "sdpa", "line": )" + deep + "}").verdict, "");
  Sizes sizes = default_sizes("sdpa");
  EXPECT_THROW(set_sizes(sizes, deep), OptionError);
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
