// Linear against sums in f64, over every kind of tiles, strides and accumulation.
#include "qkv/nn/linear.h"

#include <gtest/gtest.h>

#include <numeric>

#include "nn_support.h"
#include "support/isas.h"

namespace qkv {
namespace {

using test::random_tensor;

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Shape {
  Index m, k, n;
};

class LinearShapes : public testing::TestWithParam<Shape> {};

/// |got - sum of terms| <= (2 sqrt(count) + 4) eps sum |terms|: rounding of `count` terms in any order, at random
/// signs.
void expect_sum(float got, double sum, double magnitude, Index count) {
  const double bound = (2 * std::sqrt(static_cast<double>(count)) + 4) * kEps * magnitude;
  EXPECT_LE(std::abs(static_cast<double>(got) - sum), bound);
}

double wide(float x) { return static_cast<double>(x); }
double wide(BFloat16 x) { return static_cast<double>(static_cast<float>(x)); }

/// A sum of f32 terms rounded to bf16 once: 2^-8 of the result, in addition to what expect_sum allows.
void expect_sum(BFloat16 got, double sum, double magnitude, Index count) {
  const double bound = 0x1p-8 * std::abs(sum) + 2 * (2 * std::sqrt(static_cast<double>(count)) + 4) * kEps * magnitude;
  EXPECT_LE(std::abs(wide(got) - sum), bound);
}

/// Results of one forward and two backwards, whose second call had no dx: x [M, K], w [N, K], bias [N], dy [M, N].
template <class T> void expect_products(View<const T, 2> x, View<const T, 2> w, View<const float, 1> bias,
    View<const T, 2> dy, View<const T, 2> y, View<const T, 2> dx, View<const float, 2> dw, View<const float, 1> db) {
  const Index m = x.size(0), k = x.size(1), n = w.size(0);
  const auto expect = [](auto got, double first, Index count, const auto& term) {
    double sum = first, size = std::abs(first);
    for (Index l = 0; l < count; ++l) sum += term(l), size += std::abs(term(l));
    expect_sum(got, sum, size, count + (first != 0 ? 1 : 0));
  };
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j)
      expect(y(i, j), wide(bias(j)), k, [&](Index l) { return wide(x(i, l)) * wide(w(j, l)); });
    for (Index l = 0; l < k; ++l) expect(dx(i, l), 0, n, [&](Index j) { return wide(dy(i, j)) * wide(w(j, l)); });
  }
  for (Index j = 0; j < n; ++j) {
    expect(db(j), 0, m, [&](Index i) { return 2 * wide(dy(i, j)); });
    for (Index l = 0; l < k; ++l) expect(dw(j, l), 0, m, [&](Index i) { return 2 * wide(dy(i, j)) * wide(x(i, l)); });
  }
}

void check_forward_and_backward(const Shape& shape, Context& context) {
  const auto [m, k, n] = shape;
  nn::Linear linear({.in_features = k, .out_features = n});
  test::randomise(linear, 1);
  // Rows with a larger stride than length: x, y, dx and dy are views of wider memory with sentinels beside them.
  Tensor<float> wide_x = random_tensor({m, k + 3}, 2), wide_y({m, n + 5}), wide_dx({m, k + 1});
  Tensor<float> wide_dy = random_tensor({m, n + 2}, 3);
  std::ranges::fill(wide_y.span(), 77.0F);
  std::ranges::fill(wide_dx.span(), 77.0F);
  const auto x = wide_x.view<2>().sliced(1, 0, k), dx = wide_dx.view<2>().sliced(1, 0, k);
  const auto y = wide_y.view<2>().sliced(1, 0, n), dy = wide_dy.view<2>().sliced(1, 0, n);
  linear.forward(x, y, context);
  linear.backward(x, dy, dx, context);
  linear.backward(x, dy, {}, context);  // accumulates, and takes a null dx
  const auto parameters = linear.parameters();
  const View<const float, 2> w(parameters[0].value.data(), {n, k}), dw(parameters[0].gradient.data(), {n, k});
  const View<const float, 1> bias(parameters[1].value.data(), {n}), db(parameters[1].gradient.data(), {n});
  expect_products<float>(x, w, bias, dy, y, dx, dw, db);
  for (Index i = 0; i < m; ++i) {
    for (Index j = n; j < n + 5; ++j) EXPECT_EQ(wide_y.view<2>()(i, j), 77.0F);
    EXPECT_EQ(wide_dx.view<2>()(i, k), 77.0F);
  }
}

TEST_P(LinearShapes, ForwardAndBackward) {
  test::for_each_isa(2, [](Context& context) { check_forward_and_backward(GetParam(), context); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearShapes,
    testing::Values(Shape{1, 1, 1}, Shape{1, 3, 2}, Shape{2, 1, 3}, Shape{3, 2, 1}, Shape{5, 7, 3}, Shape{512, 32, 96},
        Shape{512, 32, 7}, Shape{1, 300, 700}, Shape{130, 65, 33}, Shape{333, 40, 129}, Shape{17, 200, 17},
        Shape{270, 790, 260}),  // more than one block along each axis
    [](const testing::TestParamInfo<Shape>& instance) {
      const Shape& shape = instance.param;
      return std::to_string(shape.m) + "x" + std::to_string(shape.k) + "x" + std::to_string(shape.n);
    });

TEST(Linear, SameBitsForAnyNumberOfThreads) {
  for (const Isa isa : test::tested_isas()) {
    SCOPED_TRACE(isa_name(isa));
    // The second is cut along columns with few threads, along rows with many.
    for (const Shape& shape : {Shape{777, 96, 130}, Shape{270, 790, 260}, Shape{9, 300, 2100}}) {
      const Index m = shape.m, k = shape.k, n = shape.n;
      const Tensor<float> x = random_tensor({m, k}, 1), dy = random_tensor({m, n}, 2);
      test::expect_same_bits_for_threads(
          [&](Context& context) {
            nn::Linear linear({.in_features = k, .out_features = n, .seed = 4});
            Tensor<float> y({m, n}), dx({m, k});
            linear.forward(x, y, context);
            linear.backward(x, dy, dx, context);
            return test::bits_of(y, dx, linear.gradients());
          },
          8, isa);
    }
  }
}

using test::random_bf16;

void check_bf16(const Shape& shape, Context& context) {
  const auto [m, k, n] = shape;
  const Tensor<BFloat16> x = random_bf16({m, k}, 1), weight = random_bf16({n, k}, 2), dy = random_bf16({m, n}, 3);
  const Tensor<float> bias = random_tensor({n}, 4);
  Tensor<BFloat16> y({m, n}), dx({m, k});
  Tensor<float> dweight({n, k}), dbias({n});
  nn::linear_forward(x, weight, bias, y, context);
  nn::linear_backward(x, dy, weight, dx, dweight, dbias, context);
  nn::linear_backward(x, dy, weight, {}, dweight, dbias, context);  // accumulates
  expect_products<BFloat16>(x, weight, bias, dy, y.view<2>(), dx.view<2>(), dweight, dbias);
}

TEST(Linear, Bf16AgreesWithSumsInF64) {
  test::for_each_isa(2, [](Context& context) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 2}, Shape{16, 33, 40}, Shape{37, 64, 33}, Shape{130, 65, 96},
             Shape{530, 131, 270}, Shape{40, 4200, 70}}) {  // more than one block along each axis
      check_bf16(shape, context);
    }
  });
}

TEST(Linear, Bf16ShapesThatDoNotFit) {
  const Tensor<BFloat16> x({9, 6}), weight({4, 6}), dy({9, 4});
  Tensor<BFloat16> y({9, 4});
  Tensor<float> bias({4}), dweight({4, 6});
  EXPECT_THROW(nn::linear_forward(x, dy, bias, y), ShapeError);
  EXPECT_THROW(nn::linear_backward(x, dy, weight, y, dweight, bias), ShapeError);
}

TEST(Linear, ABf16RowHasOneSetOfBitsAmongAnyNumberOfRows) {
  const auto isas = supported_isas();
  if (std::ranges::find(isas, Isa::kAvx512Bf16) == isas.end()) GTEST_SKIP() << "this CPU has no avx512bf16";
  Context context({.threads = 1, .isa = Isa::kAvx512Bf16});
  const Index depth = 131, columns = 75;
  const Tensor<BFloat16> x = random_bf16({40, depth}, 1), weight = random_bf16({columns, depth}, 2);
  const Tensor<float> bias = random_tensor({columns}, 3);
  Tensor<BFloat16> all({40, columns});
  nn::linear_forward(x, weight, bias, all, context);
  for (Index rows = 1; rows < 40; ++rows) {
    Tensor<BFloat16> y({rows, columns});
    nn::linear_forward(x.view<2>().sliced(0, 40 - rows, 40), weight, bias, y, context);
    EXPECT_TRUE(test::same_bits(y.span(), all.span().subspan(static_cast<std::size_t>((40 - rows) * columns)))) << rows;
  }
}

TEST(Linear, NoRows) {
  nn::Linear linear({.in_features = 3, .out_features = 2});
  Tensor<float> x({0, 3}), y({0, 2}), dx({0, 3});
  linear.forward(x, y);
  linear.backward(x, y, dx);
  for (const nn::Parameter& one : linear.parameters()) {
    for (const float value : one.gradient) EXPECT_EQ(value, 0.0F);
  }
}

/// No inputs: the bias; no outputs: no gradient; a bias alone, beside a weight that is frozen or has no columns.
TEST(Linear, AProductOverNothingIsWritten) {
  Context context({.threads = 2});
  for (const Index rows : {3, 64}) {
    const Tensor<float> none({rows, 0}), x({rows, 5}), no_inputs({4, 0}), weight({4, 5}), no_outputs({0, 5});
    Tensor<float> y({rows, 4}), dy({rows, 4}), dx({rows, 5}), bias({4}), dbias({4}), dweight({4, 0});
    std::iota(bias.span().begin(), bias.span().end(), 1.0F);
    std::ranges::fill(y.span(), 7.0F);
    nn::linear_forward(none, no_inputs, bias, y, context);
    for (Index n = 0; n < y.count(); ++n) ASSERT_EQ(y.data()[n], static_cast<float>(n % 4 + 1)) << n;
    std::ranges::fill(dx.span(), 7.0F);
    nn::linear_backward(x, none, no_outputs, dx, {}, {}, context);
    for (const float value : dx.span()) ASSERT_EQ(value, 0);
    std::ranges::fill(dy.span(), 1.0F);
    nn::linear_backward(x, dy, weight, {}, {}, dbias, context);
    nn::linear_backward(none, dy, no_inputs, {}, dweight, dbias, context);
    for (const float value : dbias.span()) EXPECT_EQ(value, 2.0F * static_cast<float>(rows));
  }
}

TEST(Linear, StartsAsPyTorch) {
  nn::Linear linear({.in_features = 400, .out_features = 300, .seed = 9});
  const double bound = 1 / std::sqrt(400.0);
  for (const nn::Parameter& one : linear.parameters()) {
    const auto [count, mean, square, largest] = test::moments_of(one.value);
    EXPECT_LE(largest, bound);
    EXPECT_GE(largest, bound * (1 - 20 / count)) << one.name;
    // Six standard errors of mean and variance of a uniform distribution.
    EXPECT_LE(std::abs(mean), 6 * bound / std::sqrt(3 * count));
    EXPECT_LE(std::abs(square / (bound * bound / 3) - 1), 6 * std::sqrt(0.8 / count));
  }
  nn::Linear same({.in_features = 400, .out_features = 300, .seed = 9}),
      other({.in_features = 400, .out_features = 300, .seed = 8});
  EXPECT_TRUE(test::same_bits(linear.state_dict(), same.state_dict()));
  EXPECT_FALSE(test::same_bits(linear.state_dict(), other.state_dict()));
}

TEST(Linear, TheFileDecidesAboutTheBias) {
  nn::Linear with({.in_features = 3, .out_features = 2}), without({.in_features = 3, .out_features = 2, .bias = false});
  nn::Linear other({.in_features = 3, .out_features = 2});
  other.load_state_dict(without.state_dict("head."), "head.");
  EXPECT_FALSE(other.has_bias());
  EXPECT_TRUE(test::same_bits(other.state_dict(), without.state_dict()));
  other.load_state_dict(with.state_dict());
  EXPECT_TRUE(test::same_bits(other.state_dict(), with.state_dict()));
}

TEST(Linear, ErrorsNameWhatIsExpected) {
  nn::Linear linear({.in_features = 3, .out_features = 2});
  const StateDict state = test::state_of({{"weights", {2, 3}}}), only_bias = test::state_of({{"h.bias", {2}}}),
                  turned = test::state_of({{"weight", {3, 2}}});
  EXPECT_EQ(test::text_of<OptionError>([&] { linear.load_state_dict(state); }),
      "[Linear::load_state_dict] unknown parameter weights: expected weight [2, 3], bias [2] (optional)");
  EXPECT_EQ(test::text_of<OptionError>([&] { linear.load_state_dict(only_bias, "h."); }),
      "[Linear::load_state_dict] missing parameter h.weight: expected weight [2, 3], bias [2] (optional); got bias "
      "[2]");
  EXPECT_EQ(test::text_of<ShapeError>([&] { linear.load_state_dict(turned); }),
      "[Linear::load_state_dict] parameter weight must be [2, 3]: got [3, 2]; expected weight [2, 3], bias [2] "
      "(optional)");
  Tensor<float> x({4, 5}), y({4, 2});
  EXPECT_EQ(test::text_of<ShapeError>([&] { linear.forward(x, y); }),
      "[Linear::forward] the last axis of x must be in_features: got x [4, 5], weight [2, 3]");
  Tensor<float> turned_x({3, 4});
  EXPECT_EQ(test::text_of<ShapeError>([&] { linear.forward(turned_x.view<2>().transposed(0, 1), y); }),
      "[Linear::forward] the last axis of x must have stride 1 and its rows must not overlap: got sizes [4, 3], "
      "strides [1, 4]");
  const View<float, 2> repeated(turned_x.data(), {4, 3}, {0, 1});
  EXPECT_THROW(linear.backward(repeated, y, {}), ShapeError);
  EXPECT_THROW(nn::Linear({.in_features = 0, .out_features = 2}), ShapeError);
}

}  // namespace
}  // namespace qkv
