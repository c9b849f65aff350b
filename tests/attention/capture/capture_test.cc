// The results of a capture, held against the weights of the reference over the case list, forward and backward, each
// type, on every instruction set; and results captured in two ways against each other.
#include <gtest/gtest.h>

#include "support/checks/check_capture.h"
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

}  // namespace
}  // namespace qkv::test
