// Adam against the same formula in f64, the schedule at its corners, clipping.
#include "qkv/lm/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "lm/lm_test_support.h"

namespace qkv {
namespace {

/// Parameters of one artificial module, in two tensors.
struct Pieces {
  std::vector<float> values, gradients;
  std::vector<nn::Parameter> parameters;

  explicit Pieces(std::size_t n) : values(n), gradients(n) {
    const std::size_t cut = n / 3;
    const auto piece = [&](const char* name, std::size_t begin, std::size_t end) {
      parameters.push_back({name, {static_cast<Index>(end - begin)}, std::span(values).subspan(begin, end - begin),
          std::span(gradients).subspan(begin, end - begin)});
    };
    piece("first", 0, cut);
    piece("second", cut, n);
  }
};

void check_adam(double weight_decay) {
  constexpr std::size_t kCount = 37;
  const double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, rate = 3e-3;
  Random random(4);
  Pieces pieces(kCount);
  std::vector<double> value(kCount), mean(kCount), square(kCount);
  for (std::size_t i = 0; i < kCount; ++i) value[i] = pieces.values[i] = static_cast<float>(random.normal());

  lm::Adam adam(kCount, {.weight_decay = weight_decay});
  for (int t = 1; t <= 5; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const double g = pieces.gradients[i] = static_cast<float>(random.normal());
      value[i] -= rate * weight_decay * value[i];
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      value[i] -=
          rate * (mean[i] / (1 - std::pow(beta1, t))) / (std::sqrt(square[i] / (1 - std::pow(beta2, t))) + epsilon);
    }
    adam.step(pieces.parameters, rate);
    // Each step rounds the value once, and an update of at most about `rate` by a few parts in 2^24; 1 - beta2 is
    // rounded to f32.
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(static_cast<double>(pieces.values[i]), value[i], t * (std::abs(value[i]) * 0x1p-23 + rate * 1e-4))
          << "step " << t;
    }
  }
  EXPECT_EQ(adam.state().step, 5);
}

TEST(Optimizer, AdamIsItsFormula) { check_adam(0); }
TEST(Optimizer, AdamWDecaysApart) { check_adam(0.1); }

TEST(Optimizer, AdamRefusesWhatCannotBe) {
  test::expect_error<OptionError>([] { lm::Adam(1, {.beta1 = 1}); }, {"betas"});
  test::expect_error<OptionError>([] { lm::Adam(1, {.epsilon = -1}); }, {"epsilon"});
  test::expect_error<OptionError>([] { lm::Adam(1, {.weight_decay = NAN}); }, {"weight_decay"});
  lm::Adam adam(3);
  Pieces pieces(4);
  std::ranges::fill(pieces.gradients, 1.0F);
  test::expect_error<ShapeError>([&] { adam.step(pieces.parameters, 1); }, {"3 elements", "second"});
  Pieces fewer(2);
  std::ranges::fill(fewer.gradients, 1.0F);
  test::expect_error<ShapeError>([&] { adam.step(fewer.parameters, 1); }, {"3 elements", "got 2"});
  for (const Pieces* kept : {&pieces, &fewer})
    EXPECT_EQ(kept->values, std::vector<float>(kept->values.size())) << "a refused step changes nothing";
  EXPECT_EQ(adam.state().step, 0);
  test::expect_error<ShapeError>([&] { adam.load_state({1, {0}, {0}}); }, {"(3)", "got 1 and 1"});
}

TEST(Optimizer, Schedule) {
  const lm::LearningRateSchedule constant;
  EXPECT_EQ(constant.at(0, 800), 3e-3);
  EXPECT_EQ(constant.at(799, 800), 3e-3);
  const lm::LearningRateSchedule cosine{lm::ScheduleKind::kCosine, 1.0, 10, 0.25};
  EXPECT_DOUBLE_EQ(cosine.at(0, 110), 0.1);
  EXPECT_DOUBLE_EQ(cosine.at(9, 110), 1.0);
  EXPECT_DOUBLE_EQ(cosine.at(10, 110), 1.0);
  EXPECT_DOUBLE_EQ(cosine.at(60, 110), (1.0 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(cosine.at(110, 110), 0.25);
  for (Index step = 11; step < 110; ++step) EXPECT_LT(cosine.at(step, 110), cosine.at(step - 1, 110));
}

TEST(Optimizer, Clipping) {
  Pieces pieces(4);
  const std::vector<float> before{3, 0, 0, 4};
  pieces.gradients = before;  // keeps its memory
  EXPECT_DOUBLE_EQ(lm::global_norm(pieces.parameters), 5);
  lm::clip_to_norm(pieces.parameters, 5, 5.5);
  EXPECT_EQ(pieces.gradients, before);
  lm::clip_to_norm(pieces.parameters, 5, 1);
  EXPECT_NEAR(lm::global_norm(pieces.parameters), 1, 1e-6);
  EXPECT_FLOAT_EQ(pieces.gradients[0] / pieces.gradients[3], 0.75F);
  lm::clip_to_norm(pieces.parameters, std::nan(""), 1);  // as in PyTorch: no gradient stays what it was
  for (const float gradient : pieces.gradients) EXPECT_TRUE(std::isnan(gradient));
  test::expect_error<OptionError>([&] { lm::clip_to_norm(pieces.parameters, 5, 0); }, {"above 0"});
}

}  // namespace
}  // namespace qkv
