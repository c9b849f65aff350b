// The NumPy example of article 003, on the numbers that its code draws.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "explain/explain.h"
#include "explain/numpy_seed0.h"
#include "qkv/attention.h"

namespace qkv::cli {
namespace {

constexpr Index kLength = 5, kDepth = 8;

Tensor<double> tensor_of(const std::array<double, 40>& values) {
  Tensor<double> tensor({1, 1, kLength, kDepth});
  std::ranges::copy(values, tensor.data());
  return tensor;
}

std::string text_of(const std::vector<double>& row) {
  std::string text;
  for (const double value : row) text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", value);
  return "[" + text + "]";
}

/// Largest distance of a causal row from the plain row divided by what the prefix holds of it.
double distance_from_renormalised(const View<const double, 4>& plain, const View<const double, 4>& causal) {
  double worst = 0;
  for (Index i = 0; i < plain.size(2); ++i) {
    double sum = 0;
    for (Index j = 0; j <= i; ++j) sum += plain(0, 0, i, j);
    for (Index j = 0; j < plain.size(3); ++j) {
      worst = std::max(worst, std::abs(causal(0, 0, i, j) - (j <= i ? plain(0, 0, i, j) / sum : 0)));
    }
  }
  return worst;
}

Index rows_that_prefer_themselves(const View<const double, 4>& weights) {
  Index rows = 0;
  for (Index i = 0; i < weights.size(2); ++i) {
    bool largest = true;
    for (Index j = 0; j < weights.size(3); ++j) largest &= weights(0, 0, i, j) <= weights(0, 0, i, i);
    rows += largest;
  }
  return rows;
}

}  // namespace

std::string row_text(const View<const double, 4>& weights, Index row) {
  std::vector<double> values;
  for (Index j = 0; j < weights.size(3); ++j) values.push_back(weights(0, 0, row, j));
  return text_of(values);
}

NumpyExample numpy_example(Context& context) {
  NumpyExample example{tensor_of(kNumpySeed0Query),
                       tensor_of(kNumpySeed0Key),
                       tensor_of(kNumpySeed0Value),
                       Tensor<double>({1, 1, kLength, kLength}),
                       Tensor<double>({1, 1, kLength, kLength}),
                       Tensor<double>({1, 1, kLength, kDepth}),
                       Tensor<double>({1, 1, kLength, kDepth}),
                       {0.25, 0.21, 0.18, 0.20, 0.16},
                       {0.28, 0.72, 0.00, 0.00, 0.00},
                       {}};
  const AttentionOptions causal{.mask = Mask::causal()};
  attention_forward(example.q, example.k, {}, {.weights = example.weights}, {}, context);
  attention_forward(example.q, example.k, {}, {.weights = example.causal_weights}, causal, context);
  attention_forward(example.q, example.k, example.v, {.out = example.out}, {}, context);
  attention_forward(example.q, example.k, example.v, {.out = example.causal_out}, causal, context);

  const std::string first = row_text(example.weights, 0), second = row_text(example.causal_weights, 1);
  const std::string printed = text_of(example.printed_row), printed_causal = text_of(example.printed_causal_row);
  const double apart = distance_from_renormalised(example.weights, example.causal_weights);
  const Index own = rows_that_prefer_themselves(example.weights);
  example.claims = {
      {"The first row is " + first + "; the article prints " + printed + ", which its code does not give.", first != printed,
       ""},
      {"The second causal row is " + second + "; the article prints " + printed_causal + ", which its code does not give.",
       second != printed_causal, ""},
      {"A causal row is the plain row without the future, divided by what is left.",
       apart <= 4 * static_cast<double>(kLength) * std::numeric_limits<double>::epsilon(), small_text(apart) + " apart"},
      {"The article says that a token usually looks at itself fairly strongly. In these random numbers no row looks most at "
       "itself.",
       own == 0, fmt::format("{} of {} rows have their largest weight on themselves", own, kLength)}};
  return example;
}

}  // namespace qkv::cli
