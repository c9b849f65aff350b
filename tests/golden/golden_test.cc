// The golden files can be read, golden.h has their formula, and qkv drops what scripts/golden/philox.py drops.
#include "golden/golden.h"

#include <gtest/gtest.h>

#include "qkv/attention.h"
#include "qkv/nn/dropout.h"

namespace qkv {
namespace {

TEST(Golden, FormulaGivesTheStoredValues) {
  const golden::File file("formula");
  const Tensor<float> made = file.f32("x"), stored = file.f32("values");
  ASSERT_EQ(made.sizes(), stored.sizes());
  EXPECT_TRUE(std::ranges::equal(made.span(), stored.span()));
}

TEST(Golden, RatioSeesOneWrongElement) {
  const golden::File file("formula");
  Tensor<float> values = file.f32("x");
  EXPECT_EQ(file.ratio<float>("values", values.span(), 1e-6), 0);
  values.data()[1234] += 1;
  EXPECT_GT(file.ratio<float>("values", values.span(), 1e-6), 1);
  values.data()[1234] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_GT(file.ratio<float>("values", values.span(), 1e-6), 1);
}

/// Names are weights.P.SEED and output.P.SEED.
TEST(Golden, DropoutFactorsAreFrozen) {
  const golden::File file("dropout_factors");
  ASSERT_EQ(file.tensors().size(), 18U);
  for (const StateDict::Entry& entry : file.tensors().entries()) {
    const std::string& name = entry.name;
    const std::size_t dot = name.rfind('.');
    const Dropout dropout{.p = std::stod(name.substr(8 - (name[0] == 'o'), dot)),
        .seed = std::stoull(name.substr(dot + 1)),
        .training = true};
    const Tensor<float> expected = to_f32(entry.tensor);
    Tensor<float> got(expected.sizes());
    if (name.starts_with("weights.")) {
      dropout_factors(dropout, got.view<4>());
    } else {
      Tensor<float> ones(expected.sizes());
      std::ranges::fill(ones.span(), 1.0F);
      nn::apply_dropout(std::as_const(ones).view<3>(), got.view<3>(), dropout);
    }
    EXPECT_TRUE(std::ranges::equal(got.span(), expected.span())) << name;
  }
}

}  // namespace
}  // namespace qkv
