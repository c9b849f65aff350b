// Bits::kInvariant, every case of the list on every instruction set of this CPU: the numbers of the plain second
// implementation, and the hashes in data/, which every CPU must give. QKV_UPDATE_HASHES=1 writes those anew, after a
// change that is meant to change bits, or of the list.
#include <gtest/gtest.h>

#include "invariant/attention.h"
#include "invariant/hashes.h"
#include "support/cases/listed_case.h"
#include "support/isas.h"
#include "support/part.h"

namespace qkv::test {
namespace {

template <class T> class InvariantCases : public testing::Test {};
TYPED_TEST_SUITE(InvariantCases, StorageTypes);

/// The same numbers; of NaN and zero the sign does not count.
template <class S> void expect_same(const char* name, const Tensor<S>& found, const Tensor<S>& plain) {
  ASSERT_EQ(found.sizes(), plain.sizes()) << name;
  Index wrong = 0, last = 0;
  for (Index n = 0; n < found.count(); ++n) {
    const S x = found.data()[n], y = plain.data()[n];
    if (x != y && !(std::isnan(x) && std::isnan(y))) ++wrong, last = n;
  }
  EXPECT_EQ(wrong, 0) << name << ": so many of " << found.count() << "; number " << last << " is " << found.data()[last]
                      << ", plainly " << plain.data()[last];
}

template <class T>
std::string expect_plain(const Problem<T>& problem, const plain::Attention<T>& plain, Context& context) {
  using S = Accumulator<T>;
  Result<T> r(problem);
  r.run(problem, context);
  Result<T> both(problem);
  attention_forward(problem.q(), problem.k(), problem.v(),
      {.out = both.out.view, .lse = both.lse, .weights = both.weights}, problem.options, context);
  const auto wide = [](const View<T, 4>& x) { return copy_as<S>(x); };
  const Tensor<S> out = wide(r.out.view), dq = wide(r.gradients.views[0]), dk = wide(r.gradients.views[1]),
                  dv = wide(r.gradients.views[2]);
  expect_same("out", out, plain.out);
  expect_same("lse", r.lse, plain.lse);
  expect_same("weights", r.weights, plain.weights);
  expect_same("weights beside out", both.weights, plain.beside);
  expect_same("dq", dq, plain.dq);
  expect_same("dk", dk, plain.dk);
  expect_same("dv", dv, plain.dv);
  expect_same("dbias", r.dbias, plain.dbias);
  expect_same("dsinks", r.dsinks, plain.dsinks);
  expect_same("dposition", r.dposition, plain.dposition);
  return hash_of<S>({&out, &r.lse, &r.weights, &both.weights}) + hash_of<S>({&dq, &dk, &dv}) +
         hash_of<S>({&r.dbias, &r.dsinks, &r.dposition});
}

TYPED_TEST(InvariantCases, AreThePlainOnesAndTheHashes) {
  using T = TypeParam;
  Hashes hashes(type_name<T>());
  // Every step-th case, whose hashes are in the file; the others too where all are asked for.
  const auto check = [&](const char* list, const std::vector<AttentionCase>& cases, std::size_t step) {
    const std::size_t first = step / 4 * kTypeNumber<T>;
    for (std::size_t n = 0; n < cases.size(); ++n) {
      const bool hashed = n % step == first;
      if (!hashed && !all_cases()) continue;
      SCOPED_TRACE(cases[n].name());
      const std::string line = std::string(list) + " " + std::to_string(n);
      Problem<T> problem(cases[n]);
      problem.options.bits = Bits::kInvariant;
      const plain::Attention<T> plain(problem);
      for_each_isa(1, [&](Context& context) {
        if (context.isa() == Isa::kScalar && n / step % 4 != 0 && !all_cases()) return;  // multiply-adds are emulated
        const std::string found = expect_plain(problem, plain, context);
        if (hashed) hashes.expect(line, found);
      });
    }
  };
  check("edges", edge_cases(), 1);
  check("long", long_cases(), 1);
  check("lists", list_cases(), 1);
  check("wide", {{1, 1, 1, 70, 3, 900, 900}, {1, 1, 1, 70, 2, 4000, 3000}}, 1);
  check("pairs", pairwise_cases(1e6), std::is_same_v<T, float> ? 1 : 4);
  hashes.write();
}

/// Sums of v that overflow before their row's maximum begins to move; keys far below a sink, then some near it.
TYPED_TEST(InvariantCases, RowsThatAreComputedAgainAreThePlainOnes) {
  using T = TypeParam;
  for (const bool sink : {false, true}) {
    AttentionCase each{1, 2, 2, 20, 410, 9, 17};
    each.bias = BiasKind::kFull;
    if (sink) each.sinks = SinkKind::kUniform;
    Problem<T> problem(each);
    problem.options.bits = Bits::kInvariant;
    const auto large =
        number_as<T>(static_cast<Accumulator<T>>(number_as<Accumulator<T>>(std::numeric_limits<T>::max()) / 10000));
    for_each_index({2, 20, 410}, [&](Index h, Index i, Index j) {
      problem.bias(0, h, i, j) += static_cast<Accumulator<T>>(sink ? (j < 300 ? -120 : -70) : j / 137 * 24);
      if (!sink && i == 0) problem.v()(0, h, j, 0) = large;
    });
    const plain::Attention<T> plain(problem);
    for_each_isa(1, [&](Context& context) { expect_plain(problem, plain, context); });
  }
}

}  // namespace
}  // namespace qkv::test
