// The reference's results of a problem of linear attention, and the bound on the distance from them
// (support/checks/bounds.h).
#pragma once

#include <map>
#include <string>

#include "linear/linear_problem.h"
#include "linear/measured.h"
#include "support/checks/bounds.h"

namespace qkv::test {

/// rows [B, Hkv, T] or [B, Hkv, T, F] summed over the axes but the last of four on which `like` has size 1.
template <class N> Tensor<N> reduced(const Tensor<N>& rows, const Tensor<N>& like) {
  if (like.data() == nullptr) return rows.clone();
  Tensor<N> sum(like.sizes());
  const auto four = [](const Tensor<N>& x) {
    return std::array{x.size(0), x.size(1), x.size(2), x.rank() > 3 ? x.size(3) : 1};
  };
  const View<const N, 4> from(rows.data(), four(rows));
  const View<N, 4> to(sum.data(), four(sum));
  for_each_index(from.sizes(), [&](Index b, Index g, Index t, Index f) {
    to(to.size(0) > 1 ? b : 0, to.size(1) > 1 ? g : 0, to.size(2) > 1 ? t : 0, f) += from(b, g, t, f);
  });
  return sum;
}

/// Every output of the reference, under the names of LinearResult::outputs.
template <class N>
std::vector<std::pair<std::string, Tensor<N>>> linear_textbook(const LinearReferenceInput<N>& input) {
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
  all.emplace_back("dlog_decay", reduced(backward.dlog_decay, input.log_decay));
  all.emplace_back("dchannels", reduced(backward.dchannels, input.channels));
  all.emplace_back("dbeta", reduced(backward.dbeta, input.beta));
  all.emplace_back("dkv", std::move(backward.dkv));
  all.emplace_back("dz", std::move(backward.dz));
  return all;
}

inline Tensor<double> sizes_of(const Tensor<Measured>& from) {
  Tensor<double> to(from.sizes());
  for (Index n = 0; n < from.count(); ++n) to.data()[n] = from.data()[n].size;
  return to;
}

/// The reference's results for one input in the three types: the exact values by name, and their bounds.
template <class T> std::map<std::string, Expected<T>> linear_expectations(const LinearReferenceInput<Wider<T>>& wide,
    const LinearReferenceInput<T>& input, const LinearReferenceInput<Measured>& measured) {
  auto exact = linear_textbook(wide);
  const auto naive = linear_textbook(input);
  const auto magnitude = linear_textbook(measured);
  std::map<std::string, Expected<T>> all;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const std::string name = exact[n].first;
    const double factor = name[0] == 'd' ? 3 : 2;
    all.emplace(name, Expected<T>(std::move(exact[n].second), naive[n].second, sizes_of(magnitude[n].second), factor));
  }
  return all;
}

}  // namespace qkv::test
