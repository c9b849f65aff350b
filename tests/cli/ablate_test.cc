// qkv ablate: each sentence of the document from its own numbers, computed again here.
#include <cmath>
#include <map>

#include "cli/tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;
using Matrix = std::vector<std::vector<double>>;

constexpr double kF64 = 1e-14;

class Ablate : public ToolTest {
 protected:
  Document numbers(const std::string& name) const {
    const Document document = json({"ablate", name, "--json"});
    EXPECT_TRUE(document.at("holds").get<bool>()) << document.at("experiments")[0].at("claims");
    EXPECT_EQ(document.at("experiments").size(), 1U);
    return document.at("experiments")[0].at("numbers");
  }
};

TEST_F(Ablate, OneQueryGivesEveryRowThePrefixOfTheLast) {
  const Document numbers = this->numbers("same-q");
  const auto plain = numbers.at("weights").get<Matrix>(), causal = numbers.at("causal_weights").get<Matrix>();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    double prefix = 0;
    for (std::size_t j = 0; j <= i; ++j) prefix += plain[0][j];
    for (std::size_t j = 0; j < plain.size(); ++j) {
      EXPECT_NEAR(plain[i][j], plain[0][j], kF64);
      EXPECT_NEAR(causal[i][j], j <= i ? plain[0][j] / prefix : 0, kF64);
    }
  }
  EXPECT_GT(std::abs(plain[0][0] - plain[0][1]), 1e-3);  // the row itself attends unevenly
}

TEST_F(Ablate, OneKeyIsAveragePooling) {
  const Document numbers = this->numbers("same-k");
  const auto plain = numbers.at("weights").get<Matrix>(), causal = numbers.at("causal_weights").get<Matrix>();
  const auto v = numbers.at("v").get<Matrix>(), out = numbers.at("out").get<Matrix>(),
             causal_out = numbers.at("causal_out").get<Matrix>();
  const double length = static_cast<double>(v.size());
  std::vector<double> sum(v[0].size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double visible = static_cast<double>(i + 1);
    for (std::size_t j = 0; j < v.size(); ++j) {
      EXPECT_NEAR(plain[i][j], 1 / length, kF64);
      EXPECT_NEAR(causal[i][j], j <= i ? 1 / visible : 0, kF64);
    }
    for (std::size_t n = 0; n < sum.size(); ++n) {
      sum[n] += v[i][n];
      EXPECT_NEAR(causal_out[i][n], sum[n] / visible, kF64);
      EXPECT_EQ(out[i][n], out[0][n]);
    }
  }
  for (std::size_t n = 0; n < sum.size(); ++n) EXPECT_NEAR(out[0][n], sum[n] / length, kF64);
}

TEST_F(Ablate, ZeroValuesGiveZero) {
  const Document numbers = this->numbers("zero-v");
  for (const char* name : {"out", "causal_out"}) {
    for (const auto& row : numbers.at(name).get<Matrix>()) {
      for (const double value : row) EXPECT_EQ(value, 0);
    }
  }
  EXPECT_GT(numbers.at("largest_output_before").get<double>(), 0.1);
}

TEST_F(Ablate, TheScaleKeepsTheSoftmaxAlive) {
  const Document rows = numbers("no-scale").at("widths");
  ASSERT_EQ(rows.size(), 6U);
  const auto alive = [](const Document& row, const char* which) {
    return row.at("sum_w_1_minus_w").at(which).get<double>();
  };
  double width = 4;
  for (const Document& row : rows) {
    EXPECT_EQ(row.at("width").get<double>(), width);
    EXPECT_NEAR(row.at("variance_over_width").get<double>(), 1, 0.15);
    EXPECT_GT(alive(row, "scale"), 0.9);
    if (!row.at("linear_variance_over_width").is_null()) {
      EXPECT_NEAR(row.at("linear_variance_over_width").get<double>(), std::pow((1 + 1 / width) / 3, 2), 0.06);
    }
    width *= 4;
  }
  EXPECT_LT(alive(rows[5], "no_scale"), alive(rows[0], "no_scale") / 10);
  EXPECT_GT(rows[5].at("largest_weight").at("no_scale").get<double>(), 0.9);
}

TEST_F(Ablate, WithoutTheMaskTheModelReadsTheFuture) {
  const Document numbers = this->numbers("no-mask");
  std::map<std::string, Document> runs;
  for (const Document& run : numbers.at("runs")) runs[run.at("name")] = run;
  const auto value = [&](const char* run, const char* name) { return runs.at(run).at(name).get<double>(); };
  EXPECT_EQ(value("trained with the mask", "logits_move_with_future"), 0);
  EXPECT_EQ(value("trained with the mask", "weight_on_future"), 0);
  EXPECT_GT(value("the same, mask taken away", "loss"), value("trained with the mask", "loss"));
  EXPECT_LT(value("trained without the mask", "loss"), value("trained with the mask", "loss") / 2);
  EXPECT_LT(value("trained without the mask", "accuracy_with_other_future"),
      value("trained without the mask", "accuracy") - 0.1);
  EXPECT_GT(value("the same, mask put on", "loss"), value("trained with the mask", "loss"));
  EXPECT_LT(value("random text, with the mask", "accuracy"), 2.0 / 7);
  EXPECT_GT(value("random text, without", "weight_on_next"), 0.8);
  EXPECT_GT(value("random text, without", "prediction_follows_next"), 0.8);
  for (const auto& [name, run] : runs) {
    for (const auto& row : run.at("sample_weights").get<Matrix>()) {
      double sum = 0;
      for (const double weight : row) sum += weight;
      EXPECT_NEAR(sum, 1, 1e-5) << name;
    }
  }
}

TEST_F(Ablate, ASentenceThatDoesNotHoldIsNotSaid) {
  const Outcome outcome = run("ablate no-mask --steps 1");  // nothing is learned in one step
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("Not so here: On random characters"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("measured: "), std::string::npos);
  const Outcome as_json = run("ablate no-mask --steps 1 --json");
  EXPECT_EQ(as_json.code, 1);
  EXPECT_FALSE(Document::parse(as_json.out).at("holds").get<bool>());
}

TEST_F(Ablate, TheSameNumbersForAnyNumberOfThreads) {
  const Words words{"ablate", "--json", "--steps", "20", "--threads"};
  const auto with = [&](const char* threads) {
    Words all = words;
    all.emplace_back(threads);
    return run(all).out;
  };
  const std::string one = with("1");
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, with("3"));
}

TEST_F(Ablate, MapsAreWrittenForEachExperiment) {
  output("ablate same-q zero-v --out maps/today");
  for (const char* name : {"maps/today/same-q.png", "maps/today/zero-v.png"}) {
    EXPECT_TRUE(contents(path(name)).starts_with("\x89PNG\r\n")) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(path("maps/today/same-k.png")));
}

TEST_F(Ablate, TheTextSaysWhatHolds) {
  const std::string text = output("ablate same-q same-k zero-v no-scale");
  EXPECT_EQ(text.find("Not so here"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  for (const char* name : {"same-q", "same-k", "zero-v", "no-scale"})
    EXPECT_NE(text.find(std::string("\n") + name + "  "), std::string::npos);
  EXPECT_NE(text.find("no mask  "), std::string::npos);
}

TEST_F(Ablate, WrongUseIsRefused) {
  write("file", "");
  expect_refused({"ablate", "no-value"}, {"same-q", "no-mask", "\"no-value\""});
  expect_refused({"ablate", "same-q", "same-q"}, {"named twice"});
  expect_refused({"ablate", "--steps", "0"}, {"--steps"});
  expect_refused("ablate same-q --out file", {"--out", "file"});
}

}  // namespace
}  // namespace qkv::test
