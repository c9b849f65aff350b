#include "qkv/nn/mlp.h"

#include <numbers>

#include "core/check.h"
#include "core/maths.h"
#include "nn/parameters/parameters.h"
#include "nn/rows/check_rows.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

/// Coefficients from the highest power down, at x; no loop, so that loops around it vectorise.
template <class... Coefficients> double polynomial(double x, double highest, Coefficients... lower) {
  ((highest = highest * x + lower), ...);
  return highest;
}

/// Phi(x) = (1 + erf(x / sqrt 2)) / 2, the normal distribution function. erf is a rational function (the coefficients
/// of Eigen's and XLA's float erf) evaluated in f64, with an error within 4e-8; no branch and no call, so that loops
/// vectorise.
[[gnu::always_inline]] inline double normal_distribution(double x) {
  constexpr double kEdge = 3.832506856900711;  // beyond it erf is 1 in f32
  const double z = maths::limited(x * (1 / std::numbers::sqrt2), kEdge);
  const double s = z * z;
  const double p = polynomial(
      s, 0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084);
  const double q = polynomial(s, -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885,
      0.014070470171167667, 0.11098505178285362, 0.49746925110067538, 1.0);
  return 0.5 + 0.5 * (z * p / q);
}

/// phi(x) = exp(-x^2 / 2) / sqrt(2 pi), its density.
float normal_density(float x) {
  constexpr float kInverseSqrtTwoPi = std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>;
  return kInverseSqrtTwoPi * static_cast<float>(maths::exp(static_cast<double>(-0.5F * x * x)));
}

}  // namespace

void gelu_forward(View<const float, 2> x, View<float, 2> y, Context& context) {
  check<ShapeError>(x.sizes() == y.sizes(), "gelu_forward", "x and y must have the same sizes: got ", x, " and ", y);
  check_rows("gelu_forward", "x", x, "y", y);
  for_row_blocks(context, {x.size(0), x.size(1)}, [&](Index begin, Index end, Index) {
    for (Index m = begin; m < end; ++m) {
      const float* from = x.data() + m * x.stride(0);
      float* to = y.data() + m * y.stride(0);
      for (Index e = 0; e < x.size(1); ++e) {
        const auto value = static_cast<double>(from[e]);
        to[e] = static_cast<float>(value * normal_distribution(value));
      }
    }
  });
}

void gelu_backward(View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, Context& context) {
  check<ShapeError>(x.sizes() == dy.sizes() && x.sizes() == dx.sizes(), "gelu_backward",
      "x, dy and dx must have the same sizes: got ", x, ", ", dy, " and ", dx);
  check_rows("gelu_backward", "x", x, "dy", dy, "dx", dx);
  for_row_blocks(context, {x.size(0), x.size(1)}, [&](Index begin, Index end, Index) {
    for (Index m = begin; m < end; ++m) {
      const float* from = x.data() + m * x.stride(0);
      const float* gradient = dy.data() + m * dy.stride(0);
      float* to = dx.data() + m * dx.stride(0);
      for (Index e = 0; e < x.size(1); ++e) {
        const auto distribution = static_cast<float>(normal_distribution(static_cast<double>(from[e])));
        to[e] = gradient[e] * (distribution + from[e] * normal_density(from[e]));
      }
    }
  });
}

Mlp::Mlp(const MlpOptions& options)
    : Module("Mlp"),
      expand_({.in_features = options.embed_dim,
          .out_features = options.hidden_dim == 0 ? 4 * options.embed_dim : options.hidden_dim,
          .bias = options.bias,
          .seed = options.seed}),
      contract_({.in_features = options.hidden_dim == 0 ? 4 * options.embed_dim : options.hidden_dim,
          .out_features = options.embed_dim,
          .bias = options.bias,
          .seed = ~options.seed}) {}

void Mlp::forward(View<const float, 2> x, View<float, 2> y, MlpSaved& saved, Context& context) const {
  resize(saved.hidden, {x.size(0), expand_.out_features()});
  resize(saved.activated, saved.hidden.sizes());
  expand_.forward(x, saved.hidden, context);
  gelu_forward(saved.hidden, saved.activated, context);
  contract_.forward(saved.activated, y, context);
}

void Mlp::backward(
    View<const float, 2> x, View<const float, 2> dy, View<float, 2> dx, MlpSaved& saved, Context& context) {
  resize(saved.dactivated, saved.hidden.sizes());
  contract_.backward(saved.activated, dy, saved.dactivated, context);
  gelu_backward(saved.hidden, saved.dactivated, saved.dactivated, context);
  expand_.backward(x, saved.dactivated, dx, context);
}

std::vector<Parameter> Mlp::parameters() {
  std::vector<Parameter> list;
  append_parameters(list, expand_, "c_fc.");
  append_parameters(list, contract_, "c_proj.");
  return list;
}

}  // namespace qkv::inline v0::nn
