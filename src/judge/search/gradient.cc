// Gradients of a textbook by central differences, whose own error is in the bound (Richardson).
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "judge/search/search.h"

namespace qkv::judge {
namespace {

/// sum(out dout), and the magnitude and rounding of its terms.
struct Loss {
  double value = 0, magnitude = 0, error = 0;
};

Loss loss_of(const Work& work) {
  const Array &out = work.at("out"), &dout = work.probe.at("dout");
  Loss loss;
  for (Index i = 0; i < out.count() && i < dout.count(); ++i) {
    loss.value += out[i].value * dout[i].value;
    loss.magnitude += std::fabs(out[i].value * dout[i].value);
    loss.error += std::fabs(dout[i].value) * out[i].error;
  }
  return loss;
}

}  // namespace

std::optional<GradientDifference> gradient_difference(const Task& task, const Choices& choices, const Case& one) {
  const std::optional<Textbook> textbook = textbook_with(task, choices);
  if (!textbook) return GradientDifference{};
  const Work base = run(*textbook, *one.probe);
  const Loss right = loss_of(base);
  const double amplified = right.error / std::max(right.magnitude, 1e-300);
  Probe moved = *one.probe;
  const auto loss_at = [&](Number& element, double value) {
    const Number kept = std::exchange(element, Number(value));
    const double loss = loss_of(run(*textbook, moved, &base)).value;
    element = kept;
    return loss;
  };
  struct Quotient {
    std::string name;
    Number expected;  // with the difference quotient's own error
    double got, unit;
  };
  std::vector<Quotient> quotients;
  double largest = 0;  // of all gradients: that of b_k is 0, as what remains of terms that cancel
  for (const auto& [answer, given] : one.answers) {
    if (!answer.starts_with("d_")) continue;
    const std::string name = answer.substr(2);
    if (!moved.has(name) || moved.at(name).count() != given.values.count()) continue;
    Array& array = moved.inputs[name];
    const Index step = std::max<Index>(1, array.count() / 48);
    for (Index i = 0; i < array.count(); i += step) {
      const double x = array[i].value, h = 0x1p-9 * std::max(1.0, std::fabs(x));
      const auto quotient = [&](double by) {
        return (loss_at(array[i], x + by) - loss_at(array[i], x - by)) / (2 * by);
      };
      const double coarse = quotient(h), fine = quotient(h / 2);
      const double value = (4 * fine - coarse) / 3;
      quotients.push_back({name, Number(value, std::fabs(value - fine)), given.values[i].value, given.unit});
      largest = std::max(largest, std::fabs(value));
    }
  }
  for (const auto& [name, expected, got, unit] : quotients) {
    // The quotients themselves round: 2^-53 of the terms, divided by h >= 2^-10.
    const double rounding = 0x1p-41 * right.magnitude;
    const double bound = 0.1 * expected.error + 4 * unit * amplified * largest + rounding;
    if (!(std::fabs(expected.value - got) <= bound)) return GradientDifference{name, {0, expected.value, got, bound}};
  }
  return std::nullopt;
}

}  // namespace qkv::judge
