#include "bench/judge.h"

#include <algorithm>
#include <cmath>

namespace qkv::cli {

Judgement judge(std::span<const double> got, std::span<const double> naive, std::span<const double> exact, double eps,
                double terms) {
  double error = 0, naive_error = 0;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const double difference = std::abs(got[n] - exact[n]);
    error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(error, difference);
    naive_error = std::max(naive_error, std::abs(naive[n] - exact[n]));
  }
  return {error, 3 * naive_error + 8 * eps * terms};
}

Judgement judge_sum(double got, double exact, double terms) { return {std::abs(got - exact), 8 * epsilon_of<float> * terms}; }

Judgement worse(const Judgement& a, const Judgement& b) {
  if (!a.holds() || !b.holds()) return a.holds() ? b : a;
  return a.error * b.bound > b.error * a.bound ? a : b;
}

}  // namespace qkv::cli
