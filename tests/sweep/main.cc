// qkv_sweep [FIRST [COUNT [STEP]]]: the product of heads, lengths, widths, masks and biases, every ISA, f32 and f64, forward
// and backward, within computed bounds. Hours long as a whole; any part of it can be run. Not: a part of ctest.
#include <cstdlib>

#include "support/expect.h"

namespace qkv::test {
namespace {

struct Sweep {
  Worst worst;
  Index done = 0, failed = 0;

  template <class T>
  void run(const AttentionCase& each, const char* type) {
    const Problem<T> problem(each);
    const Expectation<T> expectation(problem);
    for (const Isa isa : supported_isas()) {
      Context context({.threads = 1, .isa = isa, .executor = nullptr});
      const std::string name = each.name() + " " + type + " " + std::string(isa_name(isa));
      Result<T> result(problem);
      result.run(problem, context);
      for (const auto& verdict :
           {expectation.holds_forward(result, name, worst), expectation.holds_weights(result, name, worst),
            expectation.holds_backward(result, name, worst)}) {
        if (verdict) continue;
        ++failed;
        std::printf("\nFAILED %s\n", verdict.message());
      }
      if (!result.sentinels_intact()) ++failed, std::printf("\nFAILED %s: wrote outside its outputs\n", name.c_str());
    }
  }
};

}  // namespace
}  // namespace qkv::test

int main(int argc, char** argv) {
  using namespace qkv;
  using namespace qkv::test;
  const Index first = argc > 1 ? std::atoll(argv[1]) : 0;
  const Index count = argc > 2 ? std::atoll(argv[2]) : product_count() - first;
  const Index step = argc > 3 ? std::max(1LL, std::atoll(argv[3])) : 1;
  const Index end = std::min(first + count * step, product_count());
  Sweep sweep;
  for (Index n = first; n < end; n += step) {
    const AttentionCase each = product_case(n);
    if (!each.legal() || each.work() > 2e7) continue;
    sweep.run<float>(each, "f32");
    sweep.run<double>(each, "f64");
    if (++sweep.done % 20 != 0) continue;
    std::printf("\r%lld of %lld, %lld cases run, %lld failed", static_cast<long long>(n), static_cast<long long>(end),
                static_cast<long long>(sweep.done), static_cast<long long>(sweep.failed));
    std::fflush(stdout);
  }
  std::printf("\n%lld cases run, %lld failures\n", static_cast<long long>(sweep.done), static_cast<long long>(sweep.failed));
  sweep.worst.print("sweep");
  return sweep.failed == 0 ? 0 : 1;
}
