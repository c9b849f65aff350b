// `qkv gradcheck`: it passes with every kind of option, says what it found, and refuses what has no derivative. Not: whether
// the derivatives are right (tests/attention/second_order_test.cc).
#include "cli/tool.h"

namespace qkv::test {
namespace {

class Gradcheck : public ToolTest {};

TEST_F(Gradcheck, HoldsUnderTheOptionsOfAttend) {
  const std::vector<Words> sets = {{},
                                   {"--causal"},
                                   {"--causal=bottom-right", "--sizes", "2,2,1,4,7,3,5", "--bias", "hqk"},
                                   {"--window", "2,1", "--softcap", "0.7", "--seed", "3"},
                                   {"--key-lengths", "4,0", "--empty-row", "mean", "--dropout", "0.4"},
                                   {"--dropout", "0.5", "--bias", "k", "--scale", "-0.6"},
                                   {"--sizes", "1,1,1,1,1,1,1"},
                                   {"--sinks", "--alibi", "--causal", "--bias", "hqk", "--softcap", "2"},
                                   {"--sinks", "--t5", "8", "--key-lengths", "3,0", "--dropout", "0.2"},
                                   {"--relative", "2", "--position-align", "bottom-right", "--sizes", "1,2,2,4,6,3,3"},
                                   {"--sizes", "0,2,1,3,3,2,2"},
                                   {"--isa", "scalar", "--threads", "2", "--bias", "bhqk"}};
  for (const Words& set : sets) {
    SCOPED_TRACE(testing::PrintToString(set));
    Words words{"gradcheck", "--json"};
    words.insert(words.end(), set.begin(), set.end());
    const nlohmann::json found = json(words);
    EXPECT_TRUE(found.at("holds").get<bool>()) << found.dump(1);
    const auto moved = std::ranges::count_if(set, [](const std::string& word) {
      return word == "--bias" || word == "--sinks" || word == "--alibi" || word == "--t5" || word == "--relative";
    });
    EXPECT_EQ(found.at("checks").size(), static_cast<std::size_t>(11 + 2 * moved));
    for (const auto& check : found.at("checks")) {
      EXPECT_LE(check.at("error").get<double>(), check.at("bound").get<double>());
      EXPECT_LT(check.at("bound").get<double>(), 1e-5) << "a bound that lets everything pass";
    }
  }
}

TEST_F(Gradcheck, ReadsMasksAndBiasFromFiles) {
  Tensor<float> keep({1, 1, 6, 6}), bias({1, 4, 1, 6});
  for (Index n = 0; n < keep.count(); ++n) keep.data()[n] = n % 3 != 0;
  for (Index n = 0; n < bias.count(); ++n) bias.data()[n] = n == 5 ? -HUGE_VALF : 0.1F * static_cast<float>(n);
  save("keep.npy", keep);
  save("bias.npy", bias);
  const std::string text = output({"gradcheck", "--keep", "keep.npy", "--bias", "bias.npy"});
  for (const char* word : {"backward", "jvp", "duality", "double backward", "gbias", "ok"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(text.find("FAILS"), std::string::npos) << text;
}

TEST_F(Gradcheck, ReadsWhatPositionsAndSinksAddFromFiles) {
  Tensor<float> sinks({4}), buckets({6, 4}), distances({5, 4});
  for (Tensor<float>* each : {&sinks, &buckets, &distances}) {
    for (Index n = 0; n < each->count(); ++n) each->data()[n] = 0.3F * static_cast<float>(n % 7) - 1;
  }
  save("sinks.npy", sinks);
  save("buckets.npy", buckets);
  save("distances.npy", distances);
  const std::vector<Words> sets = {{"--sinks", "sinks.npy", "--t5", "buckets.npy", "--t5-max-distance", "5"},
                                   {"--t5", "buckets.npy", "--t5-past", "--causal", "--dropout", "0.2"},
                                   {"--relative", "distances.npy", "--softcap", "3"},
                                   {"--alibi=0.5,0.25,0.125,1", "--sinks"}};
  for (const Words& set : sets) {
    SCOPED_TRACE(testing::PrintToString(set));
    Words words{"gradcheck", "--json"};
    words.insert(words.end(), set.begin(), set.end());
    const nlohmann::json found = json(words);
    EXPECT_TRUE(found.at("holds").get<bool>()) << found.dump(1);
    Index elements = 0;
    for (const auto& check : found.at("checks")) {
      if (check.at("check") == "backward" && check.at("of") == "dposition") elements = check.at("elements");
    }
    EXPECT_EQ(elements, set[0] == "--relative" ? 20 : set.back() == "--sinks" ? 4 : 24);
  }
  expect_refused({"gradcheck", "--sinks", "buckets.npy"}, {"--sinks", "buckets.npy", "[H]"});
  expect_refused({"gradcheck", "--sizes", "1,2,1,4,4,2,2", "--sinks", "sinks.npy"}, {"sinks"});
  expect_refused({"gradcheck", "--t5", "none.npy"}, {"--t5", "none.npy"});
  expect_refused({"gradcheck", "--alibi=1,x"}, {"--alibi", "1,x"});
}

TEST_F(Gradcheck, RefusesWhatItCannotCheck) {
  expect_refused({"gradcheck", "--sizes", "1,2,3"}, {"--sizes", "B,H,HKV"});
  expect_refused({"gradcheck", "--sizes", "1,1,1,4000,4000,64,64"}, {"small"});
  expect_refused({"gradcheck", "--sizes", "1,3,2,4,4,2,2"}, {"heads"});
  expect_refused({"gradcheck", "--key-lengths", "0,2", "--empty-row", "nan"}, {"--empty-row", "zero"});
  expect_refused({"gradcheck", "--alibi", "--t5", "4"}, {"--alibi", "exclude"});
  expect_refused({"gradcheck", "--relative", "-3"}, {"--relative"});
  expect_refused({"gradcheck", "--causal", "--sizes", "1,1,1,3,4,2,2"}, {"bottom-right"});
}

}  // namespace
}  // namespace qkv::test
