// Captures of `qkv attend`: each agrees with the weights of the same call. Not: the bounds (tests/attention).
#include <cmath>

#include "cli/tool.h"
#include "qkv/io/safetensors.h"
#include "support/random.h"

namespace qkv::test {
namespace {

constexpr Index kHeads = 2, kQueries = 6, kKeys = 9, kDim = 4;

class AttendCapture : public ToolTest {
 protected:
  AttendCapture() {
    draw("q.npy", {1, kHeads, kQueries, kDim});
    draw("k.npy", {1, kHeads, kKeys, kDim});
    draw("v.npy", {1, kHeads, kKeys, kDim});
    draw("g.npy", {1, kHeads, kQueries, kDim});
  }

  void draw(const std::string& name, std::vector<Index> sizes) {
    Tensor<double> tensor(std::move(sizes));
    for (double& value : tensor.span()) value = 2 * random_.symmetric();
    save(name, tensor);
  }
  Tensor<double> numbers(const std::string& name) const { return to_f64(load(name)); }

  Words words(const Words& more) const {
    return Words{
               "attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "out.npy", "--causal=bottom-right"} +
           more;
  }

  Random random_{11};
};

TEST_F(AttendCapture, FilesHoldWhatTheWeightsSay) {
  output(words({"--weights", "w.npy"}));
  const std::string out = contents(path("out.npy"));
  output(words({"--stats", "s.npy", "--capture", "seen.safetensors", "--top-k", "3", "--rows", "5,0", "--column-mass",
      "--block-map", "2,3"}));
  EXPECT_EQ(contents(path("out.npy")), out) << "captures changed the output";
  const Tensor<double> weights = numbers("w.npy"), stats = numbers("s.npy");
  const StateDict seen = io::load_safetensors(path("seen.safetensors"));
  const Tensor<double> rows = to_f64(seen.at("rows")), columns = to_f64(seen.at("column_mass")),
                       map = to_f64(seen.at("map"));
  EXPECT_EQ(stats.sizes(), (std::vector<Index>{8, 1, kHeads, kQueries}));
  EXPECT_EQ(seen.at("top_keys").sizes, (std::vector<Index>{1, kHeads, kQueries, 3}));
  const View<const double, 4> w = weights, s = stats, m = map, r = rows;
  const View<const double, 3> c = columns;
  const double near = 1e-12;  // f64 sums of nine weights
  for (Index h = 0; h < kHeads; ++h) {
    for (Index j = 0; j < kKeys; ++j) {
      double column = 0;
      for (Index i = 0; i < kQueries; ++i) column += w(0, h, i, j);
      EXPECT_NEAR(c(0, h, j), column, near);
      EXPECT_EQ(r(0, h, 0, j), w(0, h, 5, j));
      EXPECT_EQ(r(0, h, 1, j), w(0, h, 0, j));
    }
    Tensor<double> blocks({2, 3});
    for (Index i = 0; i < kQueries; ++i) {
      double entropy = 0, distance = 0, largest = 0;
      for (Index j = 0; j < kKeys; ++j) {
        const double x = w(0, h, i, j);
        entropy -= x > 0 ? x * std::log(x) : 0;
        distance += x * static_cast<double>(std::abs(i + kKeys - kQueries - j));
        largest = std::max(largest, x);
        blocks.data()[i / 3 * 3 + j / 3] += x;
      }
      EXPECT_NEAR(s(0, 0, h, i), entropy, near);
      EXPECT_NEAR(s(1, 0, h, i), largest, near);
      EXPECT_NEAR(s(3, 0, h, i), w(0, h, i, i + 3), near);
      EXPECT_NEAR(s(4, 0, h, i), w(0, h, i, i + 2), near);
      EXPECT_NEAR(s(5, 0, h, i), w(0, h, i, 0), near);
      EXPECT_NEAR(s(6, 0, h, i), distance, near);
      EXPECT_EQ(s(7, 0, h, i), 0);
    }
    for (Index n = 0; n < 6; ++n) EXPECT_NEAR(m(0, h, n / 3, n % 3), blocks.data()[n], near);
  }
}

TEST_F(AttendCapture, Json) {
  output(words({"--stats", "s.json", "--top-k", "2", "--capture-heads", "1"}));
  const auto document = nlohmann::json::parse(contents(path("s.json")));
  EXPECT_EQ(document["heads"], (std::vector<int>{1}));
  EXPECT_EQ(document["entropy_nats"][0].size(), 1U);
  EXPECT_EQ(document["top_keys"][0][0].size(), static_cast<std::size_t>(kQueries));
  EXPECT_EQ(document["top_keys"][0][0][5][0], document["max_key"][0][0][5]);
}

TEST_F(AttendCapture, GradientsAreCapturedInBackward) {
  output(
      words({"--dout", "g.npy", "--of", "gradient", "--capture", "seen.safetensors", "--column-mass", "--rows", "1"}));
  const StateDict seen = io::load_safetensors(path("seen.safetensors"));
  EXPECT_EQ(seen.at("rows").sizes, (std::vector<Index>{1, kHeads, 1, kKeys}));
  EXPECT_EQ(seen.find("entropy"), nullptr);
}

TEST_F(AttendCapture, WrongUseIsToldWithoutFiles) {
  expect_refused(words({"--top-k", "3"}), {"--top-k and --column-mass need a file"});
  expect_refused(words({"--block-map", "4"}), {"--block-map need a file"});
  expect_refused(words({"--of", "everything", "--stats", "s.npy"}), {"--of must be one of weights, applied, gradient"});
  expect_refused(words({"--of", "gradient", "--capture", "s.safetensors"}), {"add --dout"});
  expect_refused(
      words({"--capture-heads", "7", "--stats", "s.npy"}), {"capture.heads must be at least 0 and below 2: got 7"});
}

}  // namespace
}  // namespace qkv::test
