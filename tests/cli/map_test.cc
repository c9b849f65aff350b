// `qkv map` in numbers: the statistics and the largest weights of a model's heads agree with the weights that `qkv train`
// reports. Not: its pictures (train_test.cc).
#include <cmath>

#include "cli/tool.h"

namespace qkv::test {
namespace {

class Map : public ToolTest {};

TEST_F(Map, TellsWhatTheHeadsOfAModelLookAt) {
  output({"train", "--steps", "20", "--heads", "4", "--kv-heads", "2", "--layers", "2", "--positions", "rotary", "--out",
          "m.safetensors"});
  const nlohmann::json weights = json({"train", "--steps", "20", "--heads", "4", "--kv-heads", "2", "--layers", "2",
                                       "--positions", "rotary", "--sample", "abcxyz", "--json"});
  const nlohmann::json seen = json({"map", "m.safetensors", "--text", "abcxyz", "--heads", "3,1", "--top-k", "2", "--json"});
  EXPECT_EQ(seen["text"], "abcxyz");
  ASSERT_EQ(seen["layers"].size(), 2U);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const nlohmann::json& one = seen["layers"][layer];
    EXPECT_EQ(one["layer"], layer);
    EXPECT_EQ(one["heads"], (std::vector<int>{3, 1}));
    for (std::size_t place = 0; place < 2; ++place) {
      const nlohmann::json& head = weights["heads"][layer * 4 + (place == 0 ? 3 : 1)];
      const nlohmann::json& means = one["means"][place];
      double entropy = 0;
      for (std::size_t i = 1; i < 6; ++i) {
        std::vector<double> row = head["weights"][i];
        for (const double w : row) entropy -= w > 0 ? w * std::log(w) / 5 : 0;
        const auto largest = std::ranges::max_element(row);
        EXPECT_EQ(one["top_keys"][0][place][i][0], largest - row.begin());
        EXPECT_NEAR(one["top_weights"][0][place][i][0], *largest, 1e-5);
      }
      EXPECT_NEAR(means["entropy_nats"], entropy, 1e-5);
      for (const char* name : {"self", "previous", "first"}) EXPECT_NEAR(means[name], head["share"][name], 1e-5) << name;
    }
  }
  const std::string text = output({"map", "m.safetensors", "--text", "abcxyz", "--stats", "--top-k", "1", "--layers", "1"});
  EXPECT_NE(text.find("entropy_nats"), std::string::npos) << text;
  EXPECT_NE(text.find("layer 1 head 3"), std::string::npos) << text;
  EXPECT_EQ(text.find("layer 0"), std::string::npos) << text;
  expect_refused({"map", "m.safetensors", "--stats", "--heads", "4"}, {"--heads", "4"});
  expect_refused({"map", "m.safetensors", "--stats", "--layers", "2"}, {"--layers", "below 2"});
  expect_refused({"map", "m.safetensors", "--top-k", "-1"}, {"--top-k", "-1"});
  save("w.npy", Tensor<float>({2, 2}));
  expect_refused({"map", "w.npy", "--stats"}, {"w.npy", "model"});
}

}  // namespace
}  // namespace qkv::test
