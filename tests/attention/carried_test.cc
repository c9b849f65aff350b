// Calls that are computed from keys in chunks. Their bits: relations_test.cc, the forms chunks and chunks_of_lists.
#include <gtest/gtest.h>

#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"
#include "support/cases/listed_case.h"
#include "support/isas.h"
#include "support/problem.h"

namespace qkv::test {
namespace {

// A whole that reads by lists is not carried; some rows of it are decided for as all of them.
TEST(CarriedKeys, AreNotThoseOfListsThatAreReadAlone) {
  std::vector<AttentionCase> cases = list_cases();
  cases.push_back(long_list_cases()[0]);
  for (const Isa isa : tested_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Context context({.threads = 2, .isa = isa, .executor = nullptr});
    int carried_forward = 0, carried_backward = 0, carried_neither = 0;
    for (const AttentionCase& s : cases) {
      const Problem<float> problem(s);
      const View<const float, 4> q = problem.q().sliced(2, s.q_len / 2, s.q_len);
      const KeySizes keys{s.num_kv_heads, s.kv_len, s.v_head_dim};
      const bool forward = carries_forward(q, keys, s.q_len, problem.options, context),
                 backward = carries_backward(q, keys, s.q_len, problem.options, context);
      EXPECT_EQ(forward,
          attention_plan(problem.q(), problem.k(), problem.v(), problem.options, context).algorithm == "tiled");
      EXPECT_TRUE(backward || !forward);
      carried_forward += forward ? 1 : 0;
      carried_backward += backward ? 1 : 0;
      carried_neither += forward || backward ? 0 : 1;
    }
    EXPECT_GT(carried_forward, 0);
    EXPECT_GT(carried_backward, carried_forward);
    EXPECT_GT(carried_neither, 0);
  }
}

}  // namespace
}  // namespace qkv::test
