// The report counts what it claims to count.
#include "qkv/lm/attention_report.h"

#include <cstdlib>

#include "lm/lm_test_support.h"

namespace qkv {
namespace {

TEST(AttentionReport, SharesOfAKnownMap) {
  // Characters x y x y; each row of weights in 16ths.
  const std::vector<Index> ids{0, 1, 0, 1};
  const float map[] = {16, 0, 0, 0, 4, 12, 0, 0, 2, 10, 4, 0, 1, 2, 9, 4};
  Tensor<float> weights({4, 4});
  for (Index i = 0; i < 16; ++i) weights.data()[i] = map[i] / 16;
  const lm::HeadReport report = lm::head_report(weights, ids, true);
  EXPECT_DOUBLE_EQ(report.self.mean, (12.0 + 4 + 4) / 16 / 3);
  EXPECT_EQ(report.self.rows_above_half, 1);
  EXPECT_DOUBLE_EQ(report.previous.mean, (4.0 + 10 + 9) / 16 / 3);
  EXPECT_EQ(report.previous.rows_above_half, 2);
  EXPECT_DOUBLE_EQ(report.first.mean, (4.0 + 2 + 1) / 16 / 3);
  EXPECT_EQ(report.first.rows_above_half, 0);
  EXPECT_DOUBLE_EQ(report.same.mean, (12.0 + (2 + 4) + (2 + 4)) / 16 / 3);
  EXPECT_EQ(report.same.rows_above_half, 1);
}

TEST(AttentionReport, SameLooksAheadOnlyWithoutCausalMask) {
  const std::vector<Index> ids{0, 1, 1};
  Tensor<float> weights({3, 3});
  for (float& w : weights.span()) w = 1.0F / 4;
  EXPECT_DOUBLE_EQ(lm::head_report(weights, ids, true).same.mean, (0.25 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(lm::head_report(weights, ids, false).same.mean, 0.5);
}

TEST(AttentionReport, OneCharacterHasNoRows) {
  Tensor<float> weights({1, 1});
  const lm::HeadReport report = lm::head_report(weights, std::vector<Index>{0}, true);
  EXPECT_EQ(report.self.mean, 0);
  test::expect_error<ShapeError>(
      [&] {
        lm::head_report(weights, std::vector<Index>{0, 1}, true);
      },
      {"[T, T]", "[1, 1]"});
}

TEST(AttentionReport, EveryHeadOfEveryLayer) {
  lm::AttentionLM model(test::blocks_config(), 1);
  const std::vector<Index> ids{1, 2, 3, 1, 2};
  const lm::AttentionReport report = lm::attention_report(model, ids);
  EXPECT_EQ(report.weights.sizes(), (std::vector<Index>{2, 2, 5, 5}));
  EXPECT_EQ(report.rows, 4);
  const std::vector<Tensor<float>> layers = model.attention_weights(View<const Index, 2>(ids.data(), {1, 5}));
  ASSERT_EQ(report.heads.size(), 4U);
  for (std::size_t n = 0; n < 4; ++n) {
    EXPECT_EQ(report.heads[n].layer, static_cast<Index>(n / 2));
    EXPECT_EQ(report.heads[n].head, static_cast<Index>(n % 2));
    const float* map = layers[n / 2].data() + (n % 2) * 25;
    EXPECT_DOUBLE_EQ(
        report.heads[n].self.mean, lm::head_report(View<const float, 2>(map, {5, 5}), ids, true).self.mean);
  }
}

TEST(AttentionReport, ScoresRefuseHeadsThatAreNot) {
  lm::AttentionLM model(test::default_config());
  test::expect_error<OptionError>([&] { lm::score_previous(model, 7, 4, 0, 0, 1); }, {"head 1 of 1"});
}

/// The loss too is computed in the context given, not in the default one.
TEST(AttentionReportDeathTest, ScoresAreOfTheirContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, in which no default context has been made
  const auto score = [] {
    setenv("QKV_ISA", "nonsense", 1);
    Context context({.threads = 1, .isa = supported_isas().front()});
    const lm::AttentionLM model(test::default_config(), 1);
    const lm::BatchSource source = lm::BatchSource::windows(test::default_ids(), {2, 16}, 1);
    std::exit(lm::score_predictions(model, source, 1, context).targets == 32 ? 0 : 1);
  };
  EXPECT_EXIT(score(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace qkv
