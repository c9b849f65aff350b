// One case of linear attention against the reference: forward, states and gradients, on every instruction set. Not:
// which cases (linear_case.h).
#pragma once

#include "linear/linear_expected.h"
#include "support/isas.h"

namespace qkv::test {

template <class T> void check_linear_case(const LinearCase& each, int threads, Worst& worst) {
  SCOPED_TRACE(each.name());
  const LinearProblem<T> problem(each);
  const auto expected = linear_expectations<T>(problem.template reference_input<Wider<T>>(),
      problem.template reference_input<T>(), problem.template reference_input<Measured>());
  for_each_isa(threads, [&](Context& context) {
    LinearResult<T> result(problem);
    result.run(problem, context);
    for (const auto& [name, tensor] : result.outputs()) {
      EXPECT_TRUE(within(expected.at(name), tensor, name, each.name(), worst));
    }
    EXPECT_TRUE(result.sentinels_intact());
  });
}

}  // namespace qkv::test
