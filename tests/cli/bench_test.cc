// `qkv bench`: what scripts read, and that the numbers agree with one another.
#include <map>
#include <set>

#include "cli/tool.h"

namespace qkv::test {
namespace {

class Bench : public ToolTest {};

TEST_F(Bench, EveryCaseSaysItsFractionOfAPeakOfTheSameRunAndItsUsefulFlops) {
  const nlohmann::json bench = json(
      "bench fwd-f32-d64-s128 bwd-f64-d64-s128-causal fwd-bf16-d64-s128-causal fwd-f32-d64-s100-causal mha-fwd-f32-b1- "
      "--json");
  EXPECT_GT(bench["peak"]["read_gbs"], 0);
  const double full = 4.0 * 64 * 128 * 128 * 64, many = 4.0 * 16 * 8 * 100 * 100 * 64;  // 4 B H Tq Tk D
  const std::map<std::string, double> flops = {{"fwd-f32-d64-s128", full}, {"fwd-f32-d64-s128-causal", full / 2},
      {"bwd-f64-d64-s128-causal", 1.25 * full}, {"fwd-bf16-d64-s128-causal", full / 2},
      {"fwd-f32-d64-s100-causal", many / 2}, {"mha-fwd-f32-b1-t8-e64-h4", 4.0 * 2 * 8 * 64 * 64 + 4.0 * 8 * 8 * 64}};
  ASSERT_EQ(
      bench["cases"].size(), flops.size());  // a name is the beginning of its cases': full and causal of the first
  for (const nlohmann::json& one : bench["cases"]) {
    const std::string name = one["name"];
    SCOPED_TRACE(name);
    EXPECT_NEAR(one["gflops"].get<double>() * one["ms"].get<double>() * 1e6 / flops.at(name), 1, 1e-9);
    const bool of_dot = one["dtype"] == "bf16" && (bench["isa"] == "avx512bf16" || bench["isa"] == "amx");
    const char* const kind = one["dtype"] == "f64" ? "fma_f64_gflops" : of_dot ? "dot_bf16_gflops" : "fma_f32_gflops";
    const double peak = one["peak"][kind];
    EXPECT_NEAR(one["fraction"].get<double>(), one["gflops"].get<double>() / peak, 1e-9);
    EXPECT_LE(peak, bench["peak"][kind].get<double>());
    EXPECT_EQ(one["of"], of_dot ? "bf16 dot" : "fma");
    EXPECT_GE(one["goal"].get<double>(), 0.3);
    EXPECT_GE(one["runs"], 10);
    EXPECT_LE(one["best_ms"], one["ms"]);
    EXPECT_LE(one["ms"], one["worst_ms"]);
    if (!name.starts_with("mha")) {
      EXPECT_NE(one["kernel"].get<std::string>().find(bench["isa"].get<std::string>()), std::string::npos);
    }
  }
}

TEST_F(Bench, OptionsAreHeldAgainstThePlainKernelForTheSameLiveTiles) {
  const nlohmann::json bench = json("bench --exact window128-f32-d64-s1024 --json");
  ASSERT_EQ(bench["cases"].size(), 1U);
  EXPECT_EQ(bench["suite"], nullptr) << "a case was named";
  const nlohmann::json& one = bench["cases"][0];
  EXPECT_EQ(one["of"], "plain");
  EXPECT_NEAR(one["fraction"].get<double>(),
      one["plain_ms"].get<double>() * one["live_tiles_share"].get<double>() / one["ms"].get<double>(), 1e-9);
  // Tiles are at most 128 keys wide: a window of 128 touches at least one and at most two columns of tiles, of eight or
  // more.
  EXPECT_GT(one["live_tiles_share"], 0.1);
  EXPECT_LT(one["live_tiles_share"], 0.3);
  const double pairs = 1024.0 * 128 - 127.0 * 128 / 2;  // row i keeps min(i + 1, 128) keys
  EXPECT_NEAR(one["gflops"].get<double>() * one["ms"].get<double>() * 1e6 / (3.5 * 4 * 8 * 64 * pairs), 1, 1e-9);
}

TEST_F(Bench, TheTableHasALineForEachCaseUnderItsGroup) {
  const std::vector<std::pair<std::string, std::string>> lines{{"lm-step", "lm"},
      {"linattn-hybrid-d128-s2048", "linattn"}, {"cache-int8-s8192", "caches"}, {"ragged-fwd-f32-d64-b16", "ragged"}};
  Words words{"bench", "--exact"};
  for (const auto& [name, group] : lines) words.push_back(name);
  std::istringstream table(output(words));
  std::string group;
  std::size_t at = 0;
  bool peak = false;
  for (std::string line; std::getline(table, line);) {
    const std::string first = line.substr(0, line.find(' '));
    if (line.find("fraction of") != std::string::npos) group = first;
    peak = peak || line.starts_with("peak: fma f32");
    if (at == lines.size() || first != lines[at].first) continue;
    EXPECT_EQ(group, lines[at].second) << line;
    EXPECT_NE(line.find(group == "ragged" ? "x plain" : "% "), std::string::npos) << line;
    ++at;
  }
  EXPECT_EQ(at, lines.size()) << "no line for " << lines[std::min(at, lines.size() - 1)].first;
  EXPECT_TRUE(peak);
}

TEST_F(Bench, ListHasEveryCaseOnceAndHelpEverySuite) {
  std::istringstream list(output({"bench", "--list"}));
  const std::string help = output({"bench", "--help"});
  std::set<std::string> names;
  std::string name, group;
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    words >> name >> group;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_NE(help.find(group), std::string::npos) << group;
  }
  for (const char* wanted :
      {"fwd-f32-d64-s16384-causal", "bwd-f32-d128-s1024", "decode-f32-b1-tq1-s32768", "decode-bf16-b16-tq1-s512",
          "bwd-bf16-d64-s4096", "dropout-f32-d64-s1024", "weights-f32-d64-s2048", "mha-fwdbwd-f32-b8-t128-e768-h12",
          "lm-process", "cache-int8-s8192", "cache-prompt-paged-f32-s4608", "ragged-bwd-f32-d64-b16",
          "linear-bwd-bf16-1600x512x512", "linattn-hybrid-d128-s2048-bwd", "fwd-f32-d32-table"}) {
    EXPECT_TRUE(names.contains(wanted)) << wanted;
  }
}

}  // namespace
}  // namespace qkv::test
