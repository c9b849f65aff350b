// One query for all, one key for all, or values of zero: experiments along the position axis, without a mask and causal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "ablate/ablate.h"
#include "core/random.h"
#include "qkv/attention.h"

namespace qkv::cli {
namespace {

constexpr Index kLength = 8, kDepth = 16;

// A weight is a quotient of sums of at most T terms, each a few roundings wide.
constexpr double kEqual = 8 * static_cast<double>(kLength) * std::numeric_limits<double>::epsilon();

/// Random q, k, v of one head [1, 1, T, D] and what attention makes of them, without a mask and causal.
struct Example {
  Tensor<double> q, k, v;
  Tensor<double> weights, causal_weights;  // [1, 1, T, T]
  Tensor<double> out, causal_out;          // [1, 1, T, D]

  explicit Example(std::uint64_t seed) : q(drawn(seed, 0)), k(drawn(seed, 1)), v(drawn(seed, 2)) {}

  void attend(Context& context) {
    weights = Tensor<double>({1, 1, kLength, kLength});
    causal_weights = Tensor<double>(weights.sizes());
    out = Tensor<double>(v.sizes());
    causal_out = Tensor<double>(v.sizes());
    const AttentionOptions causal{.mask = Mask::causal()};
    attention_forward(q, k, {}, {.weights = weights}, {}, context);
    attention_forward(q, k, {}, {.weights = causal_weights}, causal, context);
    attention_forward(q, k, v, {.out = out}, {}, context);
    attention_forward(q, k, v, {.out = causal_out}, causal, context);
  }

 private:
  static Tensor<double> drawn(std::uint64_t seed, std::uint32_t stream) {
    Tensor<double> x({1, 1, kLength, kDepth});
    Random random(seed, stream);
    for (double& value : x.span()) value = random.normal();
    return x;
  }
};

/// x[t] = x[0] for every position t.
void repeat_first_row(Tensor<double>& x) {
  for (Index t = 1; t < kLength; ++t) std::copy_n(x.data(), kDepth, x.data() + t * kDepth);
}

double at(const Tensor<double>& x, Index i, Index j) { return x.data()[i * x.size(3) + j]; }

/// Largest |x[i, j] - wanted(i, j)|; j <= i only with `lower`.
template <class Wanted>
double distance_from(const Tensor<double>& x, bool lower, Wanted wanted) {
  double worst = 0;
  for (Index i = 0; i < x.size(2); ++i) {
    for (Index j = 0; j < (lower ? i + 1 : x.size(3)); ++j) worst = std::max(worst, std::abs(at(x, i, j) - wanted(i, j)));
  }
  return worst;
}

double largest(const Tensor<double>& x) {
  return distance_from(x, false, [](Index, Index) { return 0.0; });
}

Experiment experiment_of(const Example& example, const std::string& title, const std::string& map_title) {
  Experiment experiment;
  experiment.title = title;
  experiment.maps.push_back(map_of(map_title, {"no mask", "causal"}, {&example.weights, &example.causal_weights}));
  const auto matrix = [](const Tensor<double>& x) { return nested(View<const double, 2>(x.data(), {x.size(2), x.size(3)})); };
  experiment.numbers = {{"weights", matrix(example.weights)},
                        {"causal_weights", matrix(example.causal_weights)},
                        {"v", matrix(example.v)},
                        {"out", matrix(example.out)},
                        {"causal_out", matrix(example.causal_out)}};
  return experiment;
}

}  // namespace

Experiment ablate_same_q(const AblateOptions& options, Context& context) {
  Example example(options.seed);
  repeat_first_row(example.q);
  example.attend(context);
  const auto& [weights, causal] = std::tie(example.weights, example.causal_weights);
  const double rows = distance_from(weights, false, [&](Index, Index j) { return at(weights, 0, j); });
  const double out_rows = distance_from(example.out, false, [&](Index, Index j) { return at(example.out, 0, j); });
  const double causal_rows = distance_from(causal, false, [&](Index, Index j) { return at(causal, 0, j); });
  const double renormalised = distance_from(causal, true, [&](Index i, Index j) {
    double prefix = 0;  // of the last row, which sees everything
    for (Index n = 0; n <= i; ++n) prefix += at(causal, kLength - 1, n);
    return at(causal, kLength - 1, j) / prefix;
  });
  Experiment experiment = experiment_of(example, "The same query for every position: q[i] = q[0]", "same q");
  experiment.claims = {
      {"Without a mask every position gets the same row and the same output: the query is what makes positions look at "
       "different things.",
       rows <= kEqual && out_rows <= kEqual * largest(example.v),
       fmt::format("rows differ by {}, outputs by {}", small_text(rows), small_text(out_rows))},
      {"With the causal mask the rows do differ, but only by what they may see: each is the last row cut to its prefix and "
       "divided by what is left.",
       causal_rows > 0.1 && renormalised <= kEqual,
       fmt::format("rows differ by {:.2f}, from the renormalised prefix by {}", causal_rows, small_text(renormalised))}};
  experiment.numbers["rows_differ"] = rows;
  experiment.numbers["causal_rows_differ"] = causal_rows;
  experiment.numbers["causal_from_renormalised"] = renormalised;
  return experiment;
}

Experiment ablate_same_k(const AblateOptions& options, Context& context) {
  Example example(options.seed);
  repeat_first_row(example.k);
  example.attend(context);
  const double uniform = distance_from(example.weights, false, [](Index, Index) { return 1.0 / kLength; });
  const double causal =
      distance_from(example.causal_weights, true, [](Index i, Index) { return 1.0 / static_cast<double>(i + 1); });
  const double pooled = distance_from(example.out, false, [&](Index, Index n) {
    double sum = 0;
    for (Index t = 0; t < kLength; ++t) sum += at(example.v, t, n);
    return sum / kLength;
  });
  double lowest = HUGE_VAL, highest = -HUGE_VAL, within_row = 0;  // of the scores q[i] . k[j]
  for (Index i = 0; i < kLength; ++i) {
    double first = 0;
    for (Index j = 0; j < kLength; ++j) {
      double score = 0;
      for (Index n = 0; n < kDepth; ++n) score += at(example.q, i, n) * at(example.k, j, n);
      if (j == 0) first = score;
      within_row = std::max(within_row, std::abs(score - first));
    }
    lowest = std::min(lowest, first);
    highest = std::max(highest, first);
  }
  Experiment experiment = experiment_of(example, "The same key for every position: k[j] = k[0]", "same k");
  experiment.claims = {
      {fmt::format(
           "Without a mask every weight is 1/T = 1/{}: attention is average pooling again. The key is how a position is "
           "found.",
           kLength),
       uniform <= kEqual && pooled <= kEqual * largest(example.v),
       fmt::format("{} from 1/T; output {} from the mean of v", small_text(uniform), small_text(pooled))},
      {"With the causal mask row i is 1/(i+1): the average of what came before.", causal <= kEqual,
       fmt::format("{} from 1/(i+1)", small_text(causal))},
      {"The scores are constant along each row, and not the same from row to row: softmax forgets what a whole row shares.",
       within_row == 0 && highest - lowest > 1,
       fmt::format("scores vary by {} within a row and by {:.1f} within a column", small_text(within_row), highest - lowest)}};
  experiment.numbers["from_uniform"] = uniform;
  experiment.numbers["causal_from_uniform"] = causal;
  experiment.numbers["out_from_mean"] = pooled;
  experiment.numbers["scores_vary_within_row"] = within_row;
  experiment.numbers["scores_vary_within_column"] = highest - lowest;
  return experiment;
}

Experiment ablate_zero_v(const AblateOptions& options, Context& context) {
  Example whole(options.seed), example(options.seed);
  std::ranges::fill(example.v.span(), 0.0);
  whole.attend(context);
  example.attend(context);
  const double out = std::max(largest(example.out), largest(example.causal_out));
  const double before = std::min(largest(whole.out), largest(whole.causal_out));
  const auto moved = [](const Tensor<double>& a, const Tensor<double>& b) {
    return distance_from(a, false, [&](Index i, Index j) { return at(b, i, j); });
  };
  const double weights = std::max(moved(example.weights, whole.weights), moved(example.causal_weights, whole.causal_weights));
  Experiment experiment = experiment_of(example, "Values of zero: v = 0", "v = 0");
  experiment.claims = {
      {"However fine the weights, the output is 0, with the mask and without: v is what is passed on, the weights only say in "
       "which mixture.",
       out == 0 && weights == 0 && before > 0.1,
       fmt::format("largest output {} (before: {:.2f}); weights moved by {}", small_text(out), before, small_text(weights))}};
  experiment.numbers["largest_output"] = out;
  experiment.numbers["largest_output_before"] = before;
  experiment.numbers["weights_moved"] = weights;
  return experiment;
}

}  // namespace qkv::cli
