// qkv explain: the numbers of each example, computed again from its inputs.
#include <algorithm>
#include <cmath>

#include "cli/judge_tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;
using Matrix = std::vector<std::vector<double>>;

constexpr double kF32 = 1e-6;  // f32 through three products of numbers below 10
constexpr double kF64 = 1e-14;

class Explain : public JudgeTest {
 protected:
  Explain() : document_(json({"explain", "--json"})) {}
  Document document_;
};

/// Every array of `want` by its name, against `got`.
void expect_near(const Document& got, const Document& want, double tolerance) {
  ASSERT_EQ(got.is_array(), want.is_array());
  if (!want.is_array()) {
    EXPECT_NEAR(got.get<double>(), want.get<double>(), tolerance);
    return;
  }
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < want.size(); ++n) expect_near(got[n], want[n], tolerance);
}

TEST_F(Explain, EverySentenceHolds) {
  EXPECT_TRUE(document_.at("holds").get<bool>());
  for (const char* part : {"layer", "split", "numpy", "words"}) {
    EXPECT_FALSE(document_.at(part).at("claims").empty());
    for (const Document& claim : document_.at(part).at("claims")) EXPECT_TRUE(claim.at("holds").get<bool>()) << claim;
  }
}

/// The printed lines of NumPy are a program: it gives every array of both passes.
TEST_F(Explain, ItsNumPyGivesTheSameNumbers) {
  QKV_NEEDS_PYTHON(python, "numpy");
  const Document all = json("explain --backward --json");
  EXPECT_TRUE(all.at("holds").get<bool>());
  EXPECT_EQ(all.at("layer"), document_.at("layer"));
  write("program.py", all.at("backward").at("numpy").get<std::string>() + R"(
import json
q, k, v = (x @ W.T for W in (W_q, W_k, W_v))
layer = dict(x=x, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o, q=q, k=k, v=v, weights=P, attended=O, joined=joined(O), out=out,
             products=Q @ K.swapaxes(1, 2), scores=Q @ K.swapaxes(1, 2) / np.sqrt(2), q_heads=Q)
back = {name: globals()[name] for name in "dout dO P dP dS delta J dQ dK dV dW_q dW_k dW_v dW_o dx".split()}
print(json.dumps([{name: array.tolist() for name, array in part.items()} for part in (layer, back)]))
)");
  ASSERT_EQ(std::system(("cd '" + path("").string() + "' && '" + python + "' program.py > numpy.json").c_str()), 0);
  const Document numpy = Document::parse(contents(path("numpy.json")));
  for (const auto& [name, array] : numpy[0].items()) {
    SCOPED_TRACE(name);
    const Document& got = all.at("layer").at(name);
    expect_near(name.starts_with("W_") ? got : got[0], array, 64 * kF64);
  }
  for (const auto& [name, array] : numpy[1].items()) {
    SCOPED_TRACE(name);
    expect_near(all.at("backward").at(name), array, 64 * kF64);
  }
  EXPECT_EQ(document_.at("layer").at("shapes").at("view"), (Document{1, 3, 2, 2}));
  EXPECT_EQ(document_.at("layer").at("shapes").at("heads"), (Document{1, 2, 3, 2}));
}

TEST_F(Explain, TheWrongSplitPutsTheSameNumbersElsewhere) {
  const Document& split = document_.at("split");
  const Document q = document_.at("layer").at("q")[0];
  int moved = 0;
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t n = 0; n < 2; ++n) {
        const auto of = [&](const char* which, const char* what) { return split.at(which).at(what)[0][h][i][n]; };
        EXPECT_EQ(of("right", "token"), i);
        EXPECT_EQ(of("right", "feature"), 2 * h + n);
        const std::size_t index = (3 * h + i) * 2 + n;  // row-major in [H, L, d]
        EXPECT_EQ(of("wrong", "token"), index / 4);
        EXPECT_EQ(of("wrong", "feature"), index % 4);
        EXPECT_EQ(of("wrong", "q"), q[index / 4][index % 4]);
        EXPECT_EQ(of("right", "q"), q[i][2 * h + n]);
        moved += index != 4 * i + 2 * h + n;
      }
    }
  }
  EXPECT_EQ(split.at("moved").get<int>(), moved);
  EXPECT_EQ(split.at("right").at("weights"), document_.at("layer").at("weights"));
  EXPECT_NE(split.at("wrong").at("weights"), split.at("right").at("weights"));
  EXPECT_NE(split.at("wrong").at("out"), split.at("right").at("out"));
}

TEST_F(Explain, TheNumpyExampleIsTheArticlesOwn) {
  const std::string text = output({"explain"});
  EXPECT_NE(text.find("The first row is [0.22 0.14 0.15 0.22 0.27]"), std::string::npos);
  EXPECT_NE(text.find("[0.61 0.39 0.00 0.00 0.00]"), std::string::npos);
  EXPECT_NE(text.find("which its code does not give"), std::string::npos);
}

TEST_F(Explain, OnlyAttentionTellsBlueFromRed) {
  const Document& words = document_.at("words");
  std::map<std::string, Document> mixtures;
  for (const Document& mixture : words.at("mixtures")) mixtures[mixture.at("name")] = mixture;
  for (const char* name : {"average", "fixed-weights"})
    EXPECT_EQ(mixtures.at(name).at("blue"), mixtures.at(name).at("red"));
  EXPECT_NE(mixtures.at("attention").at("blue"), mixtures.at("attention").at("red"));
  for (const auto& [name, mixture] : mixtures) {
    for (const Matrix& rows : {mixture.at("blue").get<Matrix>(), mixture.at("red").get<Matrix>()}) {
      for (const auto& row : rows) {
        double sum = 0;
        for (const double weight : row) sum += weight;
        EXPECT_NEAR(sum, 1, kF32) << name;
        if (name == "average") {
          EXPECT_NEAR(row[0], 0.2, kF32);
        }
      }
    }
  }
}

/// The lines of NumPy stand beside the steps, all of them and in their order.
TEST_F(Explain, TheBackwardPassPrintsItsNumPy) {
  const Document back = json({"explain", "--backward", "--json"}).at("backward");
  const std::string text = output({"explain", "--backward"});
  std::istringstream code(back.at("numpy").get<std::string>());
  std::size_t at = 0;
  for (std::string line; std::getline(code, line);) {
    at = text.find("  >>> " + line + "\n", at);
    ASSERT_NE(at, std::string::npos) << line;
  }
}

TEST_F(Explain, TheTextIsCalm) {
  const std::string text = output({"explain"}) + output({"explain", "--backward"});
  EXPECT_EQ(text.find("Not so here"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 84U) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

}  // namespace
}  // namespace qkv::test
