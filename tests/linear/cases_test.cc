// Linear attention against the textbook over the case list: forward, states and gradients, every instruction set, both types;
// and the textbook against itself: square, recurrence and finite differences.
#include <gtest/gtest.h>

#include <map>

#include "linear/linear_problem.h"
#include "support/isas.h"

namespace qkv::test {
namespace {

template <class T>
class Linear : public testing::Test {};
TYPED_TEST_SUITE(Linear, FloatTypes);

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
std::vector<std::pair<std::string, Tensor<N>>> textbook(const LinearProblem<T>& p) {
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

Tensor<double> sizes_of(const Tensor<Measured>& from) {
  Tensor<double> to(from.sizes());
  for (Index n = 0; n < from.count(); ++n) to.data()[n] = from.data()[n].size;
  return to;
}

template <class T>
std::map<std::string, Expected<T>> expectations(const LinearProblem<T>& p) {
  auto exact = textbook<Wider<T>>(p);
  const auto naive = textbook<T>(p);
  const auto magnitude = textbook<Measured>(p);
  std::map<std::string, Expected<T>> all;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const std::string name = exact[n].first;
    const double factor = name[0] == 'd' ? 3 : 2;
    all.emplace(name, Expected<T>(std::move(exact[n].second), naive[n].second, sizes_of(magnitude[n].second), factor));
  }
  return all;
}

template <class T>
void hold_cases(const std::vector<LinearCase>& cases, int threads) {
  Worst worst;
  for (const LinearCase& each : cases) {
    SCOPED_TRACE(each.name());
    const LinearProblem<T> problem(each);
    const auto expected = expectations(problem);
    for_each_isa(threads, [&](Context& context) {
      LinearResult<T> result(problem);
      result.run(problem, context);
      for (const auto& [name, tensor] : result.outputs()) {
        EXPECT_TRUE(within(expected.at(name), tensor, name, each.name(), worst));
      }
      EXPECT_TRUE(result.sentinels_intact());
    });
  }
  worst.print(sizeof(T) == 4 ? "f32" : "f64");
}

TYPED_TEST(Linear, PairwiseCasesAreWithinTheirBounds) {
  const auto cases = linear_pairwise_cases();
  std::printf("%zu cases\n", cases.size());
  hold_cases<TypeParam>(cases, 2);
}

TYPED_TEST(Linear, EdgeCasesAreWithinTheirBounds) { hold_cases<TypeParam>(linear_edge_cases(), 3); }

/// Largest |a - b| in units of the magnitude.
double apart(const Tensor<long double>& a, const Tensor<long double>& b, const Tensor<Measured>& size) {
  double worst = 0;
  for (Index n = 0; n < a.count(); ++n) {
    const double error = static_cast<double>(std::abs(a.data()[n] - b.data()[n]));
    worst = std::max(worst, error / (size.data()[n].size + 1e-300));
  }
  return worst;
}

TEST(LinearReference, TheSquareIsTheRecurrence) {
  for (const LinearCase& each : linear_pairwise_cases()) {
    SCOPED_TRACE(each.name());
    const LinearProblem<double> problem(each);
    const auto input = problem.reference_input<long double>();
    const auto square = input.quadratic();
    const auto recurrent = input.forward();
    const auto size = problem.reference_input<Measured>().forward();
    EXPECT_LT(apart(square.out, recurrent.out, size.out), 1e-15);
    if (!each.normalized) continue;
    EXPECT_LT(apart(square.normalizer, recurrent.normalizer, size.normalizer), 1e-15);
  }
}

/// sum(out * dout) + sum(final state * its gradient)
long double loss_of(const LinearReferenceInput<long double>& in) {
  const auto forward = in.forward();
  long double loss = 0;
  const auto add = [&](const Tensor<long double>& a, const Tensor<long double>& b) {
    for (Index n = 0; b.data() != nullptr && n < a.count(); ++n) loss += a.data()[n] * b.data()[n];
  };
  add(forward.out, in.dout), add(forward.kv, in.dkv), add(forward.z, in.dz);
  return loss;
}

/// Central differences of a number of a tensor that the input holds.
void expect_slopes(LinearReferenceInput<long double>& in, Tensor<long double>& x, const Tensor<long double>& gradient,
                   Random& random, const char* name) {
  if (x.data() == nullptr || gradient.data() == nullptr) return;
  for (int pick = 0; pick < 3; ++pick) {
    const Index n = random.below(x.count());
    long double& place = x.data()[n];
    const long double before = place, step = 1e-6L;
    place = before + step;
    const long double above = loss_of(in);
    place = before - step;
    const long double below = loss_of(in);
    place = before;
    const double slope = static_cast<double>((above - below) / (2 * step)), made = static_cast<double>(gradient.data()[n]);
    EXPECT_NEAR(slope, made, 1e-7 * (1 + std::abs(made))) << name << " " << n;
  }
}

TEST(LinearReference, GradientsAreFiniteDifferences) {
  Random random(3);
  int checked = 0;
  for (LinearCase each : linear_pairwise_cases()) {
    each.kv_len = std::min<Index>(each.kv_len, 9), each.q_len = std::min<Index>(each.q_len, each.causal() ? each.kv_len : 5);
    each.head_dim = std::min<Index>(each.head_dim, 4), each.v_head_dim = std::min<Index>(each.v_head_dim, 3);
    each.layout = Layout::kBhtd;
    if (each.order == Order::kForgetting) each.order = Order::kCausalDecay;
    SCOPED_TRACE(each.name());
    const LinearProblem<double> problem(each);
    auto in = problem.reference_input<long double>();
    const auto gradients = in.backward();
    expect_slopes(in, in.q, gradients.dq, random, "q");
    expect_slopes(in, in.k, gradients.dk, random, "k");
    expect_slopes(in, in.v, gradients.dv, random, "v");
    expect_slopes(in, in.beta, gradients.dbeta, random, "beta");
    const Tensor<long double> decay = reduced(gradients.dlog_decay, problem.log_decay);
    expect_slopes(in, in.log_decay, decay, random, "log_decay");
    expect_slopes(in, in.kv, gradients.dkv, random, "kv");
    expect_slopes(in, in.z, gradients.dz, random, "z");
    ++checked;
  }
  EXPECT_GT(checked, 30);
}

}  // namespace
}  // namespace qkv::test
