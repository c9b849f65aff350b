// The results of a capture, held against the weights of the reference over the case list, forward and backward, each
// type, on every instruction set; and results captured in two ways against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/checks/check_capture.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

/// Every second edge, each in two types, and every `step`-th case of the pairwise list.
template <class T> std::vector<AttentionCase> capture_cases(double max_work, std::size_t step) {
  std::vector<AttentionCase> cases = part_for<T>(edge_cases(), 2);
  for (const AttentionCase& each : part_for<T>(pairwise_cases(max_work), step)) cases.push_back(each);
  return cases;
}

template <class T> void run_forward_cases(double max_work, std::size_t step, const char* title) {
  Worst worst;
  for (const AttentionCase& each : capture_cases<T>(max_work, step)) check_capture_forward<T>(each, worst);
  worst.print(title);
}

template <class T> void run_backward_cases(double max_work, std::size_t step, const char* title) {
  Worst worst;
  for (const AttentionCase& each : capture_cases<T>(max_work, step)) check_capture_backward<T>(each, worst);
  worst.print(title);
}

TEST(Capture, ForwardF32) { run_forward_cases<float>(1e6, 4, "capture f32"); }
TEST(Capture, ForwardF64) { run_forward_cases<double>(3e5, 8, "capture f64"); }
TEST(Capture, ForwardBf16) { run_forward_cases<BFloat16>(6e5, 8, "capture bf16"); }
TEST(Capture, ForwardF16) { run_forward_cases<Float16>(6e5, 8, "capture f16"); }
TEST(Capture, BackwardF32) { run_backward_cases<float>(1e6, 6, "capture w dw f32"); }
TEST(Capture, BackwardF64) { run_backward_cases<double>(3e5, 10, "capture w dw f64"); }
TEST(Capture, BackwardBf16) { run_backward_cases<BFloat16>(6e5, 10, "capture w dw bf16"); }
TEST(Capture, BackwardF16) { run_backward_cases<Float16>(6e5, 10, "capture w dw f16"); }

/// Two keys whose scores are `gap` apart, however far from 0 both are: H of a row that is almost one-hot cancels
/// unless it is made from what is relative to the largest score.
TEST(Capture, EntropyOfARowFarFromZero) {
  constexpr double gap = 10.25, eps = std::numeric_limits<double>::epsilon();
  const double rest = 1 / (1 + std::exp(gap)),
               expected = rest * (gap + std::log1p(std::exp(-gap))) - (1 - rest) * std::log1p(-rest);
  for_each_isa(1, [&](Context& context) {
    for (const double score : {-512.0, -40.0, 0.0, 12.5, 40.0, 512.0}) {
      Tensor<double> q({1, 1, 1, 4}), k({1, 1, 2, 4}), v({1, 1, 2, 4}), out({1, 1, 1, 4}), bias({1, 1, 1, 2});
      bias.data()[0] = score, bias.data()[1] = score - gap;
      const Capture what{.statistics = true};
      CaptureResult found;
      AttentionOptions options;
      options.bias = bias;
      options.capture = {what, found};
      attention_forward(q, k, v, {.out = out}, options, context);
      // The rounding of the scores, times dH by them, and four roundings of terms of at most 1.
      const double bound = eps * (4 + 4 * (std::abs(score) + gap) * rest * (1 + gap));
      EXPECT_NEAR(found.statistics.entropy.data()[0], expected, bound) << "scores about " << score;
    }
  });
}

}  // namespace
}  // namespace qkv::test
