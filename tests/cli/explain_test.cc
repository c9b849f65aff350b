// qkv explain: the numbers of each example, computed again from its inputs.
#include <algorithm>
#include <cmath>
#include <functional>

#include "cli/tool.h"
#include "golden/golden.h"
#include "reference/attention.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;
using Matrix = std::vector<std::vector<double>>;

constexpr double kF32 = 1e-6;  // f32 through three products of numbers below 10
constexpr double kF64 = 1e-14;

class Explain : public ToolTest {
 protected:
  Explain() : document_(json({"explain", "--json"})) {}
  Document document_;
};

/// x W^T
Matrix linear(const Matrix& x, const Matrix& w) {
  Matrix y(x.size(), std::vector<double>(w.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t n = 0; n < w.size(); ++n) {
      for (std::size_t k = 0; k < x[i].size(); ++k) y[i][n] += x[i][k] * w[n][k];
    }
  }
  return y;
}

/// softmax(q k^T / sqrt(d)); causal: j <= i.
Matrix weights_of(const Matrix& q, const Matrix& k, bool causal = false) {
  Matrix w = linear(q, k);
  for (std::size_t i = 0; i < w.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < w[i].size(); ++j) {
      w[i][j] = causal && j > i ? 0 : std::exp(w[i][j] / std::sqrt(static_cast<double>(q[0].size())));
      sum += w[i][j];
    }
    for (double& weight : w[i]) weight /= sum;
  }
  return w;
}

Matrix product(const Matrix& w, const Matrix& v) {
  Matrix out(w.size(), std::vector<double>(v[0].size()));
  for (std::size_t i = 0; i < w.size(); ++i) {
    for (std::size_t j = 0; j < v.size(); ++j) {
      for (std::size_t n = 0; n < v[j].size(); ++n) out[i][n] += w[i][j] * v[j][n];
    }
  }
  return out;
}

/// Columns [begin, begin + count).
Matrix columns(const Matrix& x, std::size_t begin, std::size_t count) {
  Matrix part;
  for (const auto& row : x)
    part.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(begin),
                      row.begin() + static_cast<std::ptrdiff_t>(begin + count));
  return part;
}

void expect_near(const Matrix& got, const Matrix& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    for (std::size_t j = 0; j < want[i].size(); ++j) EXPECT_NEAR(got[i][j], want[i][j], tolerance) << i << ", " << j;
  }
}

TEST_F(Explain, EverySentenceHolds) {
  EXPECT_TRUE(document_.at("holds").get<bool>());
  for (const char* part : {"layer", "split", "numpy", "words"}) {
    EXPECT_FALSE(document_.at(part).at("claims").empty());
    for (const Document& claim : document_.at(part).at("claims")) EXPECT_TRUE(claim.at("holds").get<bool>()) << claim;
  }
}

TEST_F(Explain, TheLayerCanBeDoneByHand) {
  const Document& layer = document_.at("layer");
  const auto matrix = [](const Document& x) { return x.get<Matrix>(); };
  const auto& parameters = layer.at("parameters");
  const Matrix x = matrix(layer.at("x")[0]);
  const Matrix q = linear(x, matrix(parameters.at("W_q"))), k = linear(x, matrix(parameters.at("W_k"))),
               v = linear(x, matrix(parameters.at("W_v")));
  expect_near(matrix(layer.at("q")[0]), q, 0);  // whole numbers are exact
  expect_near(matrix(layer.at("k")[0]), k, 0);
  expect_near(matrix(layer.at("v")[0]), v, 0);
  Matrix joined(x.size());
  for (std::size_t h = 0; h < 2; ++h) {
    const Matrix w = weights_of(columns(q, 2 * h, 2), columns(k, 2 * h, 2));
    expect_near(matrix(layer.at("products")[0][h]), linear(columns(q, 2 * h, 2), columns(k, 2 * h, 2)), 0);
    expect_near(matrix(layer.at("weights")[0][h]), w, kF32);
    const Matrix out = product(w, columns(v, 2 * h, 2));
    expect_near(matrix(layer.at("attended")[0][h]), out, kF32);
    for (std::size_t i = 0; i < x.size(); ++i) joined[i].insert(joined[i].end(), out[i].begin(), out[i].end());
  }
  expect_near(matrix(layer.at("joined")[0]), joined, kF32);
  expect_near(matrix(layer.at("out")[0]), linear(joined, matrix(parameters.at("W_o"))), 4 * kF32);
  EXPECT_EQ(layer.at("shapes").at("view"), (Document{1, 3, 2, 2}));
  EXPECT_EQ(layer.at("shapes").at("heads"), (Document{1, 2, 3, 2}));
  EXPECT_EQ(layer.at("shapes").at("scores"), (Document{1, 2, 3, 3}));
}

TEST_F(Explain, TheWrongSplitPutsTheSameNumbersElsewhere) {
  const Document& split = document_.at("split");
  const Document q = document_.at("layer").at("q")[0];
  int moved = 0;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 3; ++i) {
      for (int n = 0; n < 2; ++n) {
        const auto of = [&](const char* which, const char* what) { return split.at(which).at(what)[0][h][i][n].get<int>(); };
        EXPECT_EQ(of("right", "token"), i);
        EXPECT_EQ(of("right", "feature"), 2 * h + n);
        const int place = (3 * h + i) * 2 + n;  // row-major in [H, L, d]
        EXPECT_EQ(of("wrong", "token"), place / 4);
        EXPECT_EQ(of("wrong", "feature"), place % 4);
        EXPECT_EQ(of("wrong", "q"), q[place / 4][place % 4].get<int>());
        EXPECT_EQ(of("right", "q"), q[i][2 * h + n].get<int>());
        moved += place != 4 * i + 2 * h + n;
      }
    }
  }
  EXPECT_EQ(split.at("moved").get<int>(), moved);
  EXPECT_EQ(split.at("right").at("weights"), document_.at("layer").at("weights"));
  EXPECT_NE(split.at("wrong").at("weights"), split.at("right").at("weights"));
  EXPECT_NE(split.at("wrong").at("out"), split.at("right").at("out"));
}

TEST_F(Explain, TheNumpyExampleIsTheArticlesOwn) {
  const Document& numpy = document_.at("numpy");
  const golden::File file("five_tokens");
  for (const auto& [name, golden_name] : {std::pair("q", "q"),
                                          {"k", "k"},
                                          {"v", "v"},
                                          {"weights", "plain.weights"},
                                          {"causal_weights", "causal.weights"},
                                          {"out", "plain.out"},
                                          {"causal_out", "causal.out"}}) {
    SCOPED_TRACE(name);
    const Tensor<double> want = to_f64(file.tensors().at(golden_name));
    const Matrix got = numpy.at(name).get<Matrix>();
    const Index width = static_cast<Index>(got[0].size());
    ASSERT_EQ(want.count(), static_cast<Index>(got.size()) * width);
    const double tolerance = golden_name[1] == '\0' ? 0 : kF64;  // bit-identical inputs
    for (Index n = 0; n < want.count(); ++n) {
      EXPECT_NEAR(got[static_cast<std::size_t>(n / width)][static_cast<std::size_t>(n % width)], want.data()[n], tolerance);
    }
  }
  const std::string text = output({"explain"});
  EXPECT_NE(text.find("The first row is [0.22 0.14 0.15 0.22 0.27]"), std::string::npos);
  EXPECT_NE(text.find("[0.61 0.39 0.00 0.00 0.00]"), std::string::npos);
  EXPECT_NE(text.find("which its code does not give"), std::string::npos);
}

TEST_F(Explain, OnlyAttentionTellsBlueFromRed) {
  const Document& words = document_.at("words");
  std::map<std::string, Document> mixtures;
  for (const Document& mixture : words.at("mixtures")) mixtures[mixture.at("name")] = mixture;
  for (const char* name : {"average", "fixed-weights"}) EXPECT_EQ(mixtures.at(name).at("blue"), mixtures.at(name).at("red"));
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

/// By the textbook's backward pass for attention, and by plain products for the projections.
TEST_F(Explain, TheBackwardPassIsTheReferences) {
  const Document all = json({"explain", "--backward", "--json"});
  EXPECT_TRUE(all.at("holds").get<bool>());
  const Document& layer = all.at("layer");
  const Document& back = all.at("backward");
  EXPECT_EQ(layer, document_.at("layer"));
  const auto matrix = [](const Document& x) { return x.get<Matrix>(); };
  const auto transposed = [](const Matrix& a) {
    Matrix t(a[0].size(), std::vector<double>(a.size()));
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
    }
    return t;
  };
  const Matrix x = matrix(layer.at("x")[0]), dout = matrix(back.at("dout"));
  const Matrix dattended = product(dout, matrix(layer.at("parameters").at("W_o")));
  Matrix dq(x.size()), dk(x.size()), dv(x.size()), attended(x.size());
  for (std::size_t h = 0; h < 2; ++h) {
    const Matrix d_head = columns(dattended, 2 * h, 2);
    expect_near(matrix(back.at("dO")[h]), d_head, kF64);
    const auto tensor = [](const Matrix& a) {
      Tensor<double> t({1, 1, static_cast<Index>(a.size()), static_cast<Index>(a[0].size())});
      double* to = t.data();
      for (const auto& row : a) to = std::ranges::copy(row, to).out;
      return t;
    };
    const auto rows = [](const Tensor<double>& t) {
      Matrix a;
      for (Index i = 0; i < t.size(2); ++i) a.emplace_back(t.data() + i * t.size(3), t.data() + (i + 1) * t.size(3));
      return a;
    };
    const Tensor<double> q = tensor(columns(matrix(layer.at("q")[0]), 2 * h, 2)),
                         k = tensor(columns(matrix(layer.at("k")[0]), 2 * h, 2)),
                         v = tensor(columns(matrix(layer.at("v")[0]), 2 * h, 2));
    const auto forward = reference::attention_forward<double>(q, k, v, {});
    const auto truth = reference::attention_backward<double>(q, k, v, tensor(d_head), {}, {});
    expect_near(matrix(back.at("P")[h]), rows(forward.weights), kF64);
    expect_near(matrix(back.at("dQ")[h]), rows(truth.dq), 16 * kF64);
    expect_near(matrix(back.at("dK")[h]), rows(truth.dk), 16 * kF64);
    expect_near(matrix(back.at("dV")[h]), rows(truth.dv), 16 * kF64);
    expect_near(matrix(back.at("dS")[h]), rows(truth.dbias), 16 * kF64);
    const Matrix dp = linear(d_head, rows(v));
    expect_near(matrix(back.at("dP")[h]), dp, kF64);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double delta = 0;
      for (std::size_t j = 0; j < dp[i].size(); ++j) delta += rows(forward.weights)[i][j] * dp[i][j];
      EXPECT_NEAR(back.at("delta")[h][i][0].get<double>(), delta, 16 * kF64);
      for (const auto& [whole, part] :
           {std::pair(&dq, &truth.dq), {&dk, &truth.dk}, {&dv, &truth.dv}, {&attended, &forward.out}}) {
        const Matrix one = rows(*part);
        (*whole)[i].insert((*whole)[i].end(), one[i].begin(), one[i].end());
      }
    }
  }
  const Matrix p = matrix(back.at("P")[0]), jacobian = matrix(back.at("J"));
  for (std::size_t j = 0; j < 3; ++j) {
    for (std::size_t k = 0; k < 3; ++k) EXPECT_NEAR(jacobian[j][k], (j == k ? p[0][j] : 0) - p[0][j] * p[0][k], kF64);
  }
  const auto& parameters = layer.at("parameters");
  expect_near(matrix(back.at("dW_o")), product(transposed(dout), attended), 16 * kF64);
  expect_near(matrix(back.at("dW_q")), product(transposed(dq), x), 64 * kF64);
  expect_near(matrix(back.at("dW_k")), product(transposed(dk), x), 64 * kF64);
  expect_near(matrix(back.at("dW_v")), product(transposed(dv), x), 64 * kF64);
  Matrix dx = product(dq, matrix(parameters.at("W_q")));
  for (const auto& [name, part] : {std::pair("W_k", &dk), {"W_v", &dv}}) {
    const Matrix more = product(*part, matrix(parameters.at(name)));
    for (std::size_t i = 0; i < dx.size(); ++i) std::ranges::transform(dx[i], more[i], dx[i].begin(), std::plus<>());
  }
  expect_near(matrix(back.at("dx")), dx, 64 * kF64);
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
