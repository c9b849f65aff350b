// The scale 1/sqrt(D): what softmax becomes without it as D grows, and what freshly made Linear layers do to the
// argument.
#include <fmt/format.h>

#include <cmath>

#include "ablate/ablate.h"
#include "core/random.h"
#include "qkv/attention.h"
#include "qkv/nn/linear.h"

namespace qkv::cli {
namespace {

constexpr Index kDraws = 16, kKeys = 32, kWidest = 4096, kWidestLinear = 1024;
constexpr Index kWidths[] = {4, 16, 64, 256, 1024, 4096};

struct Estimate {
  double mean = 0;
  double error = 0;  ///< standard error of the mean over the draws
  /// Six standard errors: 16 draws miss that by chance once in some 40,000 times.
  bool agrees_with(double value) const { return std::abs(mean - value) <= 6 * error; }
};

Estimate estimate_of(const std::vector<double>& values) {
  const double count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  for (const double value : values) squares += (value - sum / count) * (value - sum / count);
  return {sum / count, std::sqrt(squares / (count - 1) / count)};
}

/// mean (q[i] . k[j])^2 / D over the pairs of each draw; the true mean is 0. q, k [R, 1, T, D].
Estimate variance_over_width(View<const float, 4> q, View<const float, 4> k) {
  std::vector<double> draws;
  for (Index r = 0; r < q.size(0); ++r) {
    double squares = 0;
    for (Index i = 0; i < q.size(2); ++i) {
      for (Index j = 0; j < k.size(2); ++j) {
        double score = 0;
        for (Index n = 0; n < q.size(3); ++n)
          score += static_cast<double>(q(r, 0, i, n)) * static_cast<double>(k(r, 0, j, n));
        squares += score * score;
      }
    }
    draws.push_back(squares / static_cast<double>(q.size(2) * k.size(2) * q.size(3)));
  }
  return estimate_of(draws);
}

struct Sharpness {
  double largest = 0;  ///< mean over the rows of the largest weight
  double alive = 0;    ///< mean over the rows of sum_j w (1 - w), the trace of the softmax's derivative
};

Sharpness sharpness_of(const Tensor<float>& weights) {
  const Index width = weights.size(3), rows = weights.count() / width;
  Sharpness sharpness;
  for (Index row = 0; row < rows; ++row) {
    double largest = 0;
    for (Index j = 0; j < width; ++j) {
      const double w = static_cast<double>(weights.data()[row * width + j]);
      largest = std::max(largest, w);
      sharpness.alive += w * (1 - w) / static_cast<double>(rows);
    }
    sharpness.largest += largest / static_cast<double>(rows);
  }
  return sharpness;
}

Tensor<float> drawn(std::uint64_t seed, std::uint32_t stream, Index width) {
  Tensor<float> x({kDraws, 1, kKeys, width});
  Random random(seed, stream);
  for (float& value : x.span()) value = static_cast<float>(random.normal());
  return x;
}

/// q and k made of unit-variance x by two Linear layers as PyTorch starts them, another pair for each draw.
Estimate variance_of_linear(std::uint64_t seed, Index width, Context& context) {
  const Tensor<float> x = drawn(seed, 2, width);
  Tensor<float> q(x.sizes()), k(x.sizes());
  for (Index r = 0; r < kDraws; ++r) {
    const auto rows = [&](auto& tensor) {
      return View<std::remove_pointer_t<decltype(tensor.data())>, 2>(tensor.data() + r * kKeys * width, {kKeys, width});
    };
    const std::uint64_t one = seed * 2 * kDraws + 2 * static_cast<std::uint64_t>(r);
    nn::Linear({.in_features = width, .out_features = width, .seed = one}).forward(rows(x), rows(q), context);
    nn::Linear({.in_features = width, .out_features = width, .seed = one + 1}).forward(rows(x), rows(k), context);
  }
  return variance_over_width(q, k);
}

/// Variance of q . k over D for q = W x + b: (1/3 + 1/(3 D))^2, since W and b are uniform within 1/sqrt(D).
double linear_prediction(Index width) {
  const double of_q = (1 + 1 / static_cast<double>(width)) / 3;
  return of_q * of_q;
}

struct Row {
  Index width;
  Estimate variance;
  Sharpness bare, scaled;
  bool has_linear;
  Estimate linear;
};

std::vector<Row> measure(std::uint64_t seed, Context& context) {
  const Tensor<float> q_all = drawn(seed, 0, kWidest), k_all = drawn(seed, 1, kWidest);
  Tensor<float> weights({kDraws, 1, kKeys, kKeys});
  std::vector<Row> rows;
  for (const Index width : kWidths) {
    const auto q = View<const float, 4>(q_all).sliced(3, 0, width), k = View<const float, 4>(k_all).sliced(3, 0, width);
    Row row{width, variance_over_width(q, k), {}, {}, width <= kWidestLinear, {}};
    attention_forward(q, k, {}, {.weights = weights}, {.scale = 1.0}, context);
    row.bare = sharpness_of(weights);
    attention_forward(q, k, {}, {.weights = weights}, {}, context);
    row.scaled = sharpness_of(weights);
    if (row.has_linear) row.linear = variance_of_linear(seed, width, context);
    rows.push_back(row);
  }
  return rows;
}

/// The weights of one draw at the widest D, without the scale and with it.
view::AttentionMap widest_map(std::uint64_t seed) {
  constexpr Index kShown = 8;
  judge::Array q({kShown, kWidest}), k(q.shape);
  Random random(seed, 3);
  for (judge::Array* x : {&q, &k}) {
    for (judge::Number& value : x->data) value = random.normal();
  }
  const judge::Array scores = matmul(q, transpose(k));
  const double scale = 1 / std::sqrt(static_cast<double>(kWidest));
  return map_of("D = 4096", {"without scale", "with scale"}, {softmax(scores), softmax(scores * judge::Number(scale))});
}

std::vector<Claim> claims_of(const std::vector<Row>& rows) {
  const Row &narrow = rows.front(), &wide = rows.back();
  bool variance_holds = true, falls = true, linear_holds = true;
  double lowest_alive = 1, highest_alive = 0, farthest = 0;
  const Row* widest_linear = &narrow;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    variance_holds &= rows[n].variance.agrees_with(1);
    farthest = std::max(farthest, std::abs(rows[n].variance.mean - 1));
    if (n > 0) falls &= rows[n].bare.alive < rows[n - 1].bare.alive && rows[n].bare.largest > rows[n - 1].bare.largest;
    lowest_alive = std::min(lowest_alive, rows[n].scaled.alive);
    highest_alive = std::max(highest_alive, rows[n].scaled.alive);
    if (!rows[n].has_linear) continue;
    linear_holds &= rows[n].linear.agrees_with(linear_prediction(rows[n].width));
    widest_linear = &rows[n];
  }
  return {{"q . k over D numbers of variance 1 has variance D.", variance_holds,
              fmt::format("variance / D is within {:.2f} of 1 at every D", farthest)},
      {fmt::format("Without the scale softmax picks one key as D grows: the largest of {} weights goes from {:.2f} to "
                   "{:.2f}, and sum w(1-w), through which gradients pass, from {:.2f} to {:.3f}.",
           kKeys, narrow.bare.largest, wide.bare.largest, narrow.bare.alive, wide.bare.alive),
          falls && wide.bare.largest > 0.9 && wide.bare.alive < narrow.bare.alive / 10, ""},
      {fmt::format("The scale keeps it alive: sum w(1-w) stays between {:.2f} and {:.2f} at every D.", lowest_alive,
           highest_alive),
          lowest_alive > 0.9 * highest_alive, ""},
      {fmt::format("nn.Linear starts elsewhere: its q and k have variance 1/3, so q . k has about D/9, 1/9 after the "
                   "scale, and the softmax starts flatter than the argument says."),
          linear_holds && std::abs(widest_linear->linear.mean - 1.0 / 9) < 0.02,
          fmt::format("variance / D is {:.3f} at D = {}", widest_linear->linear.mean, widest_linear->width)}};
}

}  // namespace

Experiment ablate_scale(const AblateOptions& options, Context& context) {
  const std::vector<Row> rows = measure(options.seed, context);
  Experiment experiment;
  experiment.title = "No scale: softmax(q k^T) instead of softmax(q k^T / sqrt(D))";
  experiment.maps.push_back(widest_map(options.seed));
  experiment.claims = claims_of(rows);
  experiment.table = {fmt::format("{:>6}  {:>12}  {:>20}  {:>20}  {:>12}", "", "var(q.k)/D", "largest weight",
                          "sum w(1-w)", "var(q.k)/D"),
      fmt::format("{:>6}  {:>12}  {:>10}{:>10}  {:>10}{:>10}  {:>12}", "D", "of randn", "no scale", "scale", "no scale",
          "scale", "of Linear")};
  Json list = Json::array();
  for (const Row& row : rows) {
    experiment.table.push_back(fmt::format("{:>6}  {:>12.3f}  {:>10.3f}{:>10.3f}  {:>10.4f}{:>10.4f}  {:>12}",
        row.width, row.variance.mean, row.bare.largest, row.scaled.largest, row.bare.alive, row.scaled.alive,
        row.has_linear ? fmt::format("{:.3f}", row.linear.mean) : "-"));
    list.push_back({{"width", row.width}, {"variance_over_width", row.variance.mean},
        {"variance_standard_error", row.variance.error},
        {"largest_weight", {{"no_scale", row.bare.largest}, {"scale", row.scaled.largest}}},
        {"sum_w_1_minus_w", {{"no_scale", row.bare.alive}, {"scale", row.scaled.alive}}},
        {"linear_variance_over_width", row.has_linear ? Json(row.linear.mean) : Json()},
        {"linear_standard_error", row.has_linear ? Json(row.linear.error) : Json()}});
  }
  experiment.numbers = {{"keys", kKeys}, {"draws", kDraws}, {"widths", list}};
  return experiment;
}

}  // namespace qkv::cli
