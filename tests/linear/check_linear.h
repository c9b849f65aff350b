// One case of linear attention held against the textbook: forward, states and gradients, on every instruction set. Not: which
// cases (linear_case.h).
#pragma once

#include <map>

#include "linear/linear_problem.h"
#include "support/isas.h"

namespace qkv::test {

/// rows [B, Hkv, T] summed over the axes on which `like` has size 1.
template <class N, class T>
Tensor<N> reduced(const Tensor<N>& rows, const Tensor<T>& like) {
  if (like.data() == nullptr) return rows.clone();
  Tensor<N> sum(like.sizes());
  const View<const N, 3> from = rows;
  const View<N, 3> to = sum;
  for (Index b = 0; b < from.size(0); ++b) {
    for (Index g = 0; g < from.size(1); ++g) {
      for (Index t = 0; t < from.size(2); ++t) {
        to(to.size(0) > 1 ? b : 0, to.size(1) > 1 ? g : 0, to.size(2) > 1 ? t : 0) += from(b, g, t);
      }
    }
  }
  return sum;
}

/// Every output of the textbook, under the names of LinearResult::outputs.
template <class N, class T>
std::vector<std::pair<std::string, Tensor<N>>> linear_textbook(const LinearProblem<T>& p) {
  const LinearReferenceInput<N> input = p.template reference_input<N>();
  auto forward = input.forward();
  auto backward = input.backward();
  std::vector<std::pair<std::string, Tensor<N>>> all;
  all.emplace_back("out", std::move(forward.out));
  all.emplace_back("normalizer", std::move(forward.normalizer));
  all.emplace_back("kv", std::move(forward.kv));
  all.emplace_back("z", std::move(forward.z));
  all.emplace_back("dq", std::move(backward.dq));
  all.emplace_back("dk", std::move(backward.dk));
  all.emplace_back("dv", std::move(backward.dv));
  all.emplace_back("dlog_decay", reduced(backward.dlog_decay, p.log_decay));
  all.emplace_back("dbeta", reduced(backward.dbeta, p.beta));
  all.emplace_back("dkv", std::move(backward.dkv));
  all.emplace_back("dz", std::move(backward.dz));
  return all;
}

inline Tensor<double> sizes_of(const Tensor<Measured>& from) {
  Tensor<double> to(from.sizes());
  for (Index n = 0; n < from.count(); ++n) to.data()[n] = from.data()[n].size;
  return to;
}

template <class T>
std::map<std::string, Expected<T>> linear_expectations(const LinearProblem<T>& p) {
  auto exact = linear_textbook<Wider<T>>(p);
  const auto naive = linear_textbook<T>(p);
  const auto magnitude = linear_textbook<Measured>(p);
  std::map<std::string, Expected<T>> all;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const std::string name = exact[n].first;
    const double factor = name[0] == 'd' ? 3 : 2;
    all.emplace(name, Expected<T>(std::move(exact[n].second), naive[n].second, sizes_of(magnitude[n].second), factor));
  }
  return all;
}

template <class T>
void check_linear_case(const LinearCase& each, int threads, Worst& worst) {
  SCOPED_TRACE(each.name());
  const LinearProblem<T> problem(each);
  const auto expected = linear_expectations(problem);
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
