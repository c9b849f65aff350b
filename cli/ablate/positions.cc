// One query for all, one key for all, or values of zero: experiments along the position axis, without a mask and
// causal. On the judge's arrays, whose loops are a textbook's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ablate/ablate.h"
#include "core/random.h"

namespace qkv::cli {
namespace {

using judge::Array;
using judge::Number;

constexpr Index kLength = 8, kDepth = 16;

// A weight is a quotient of sums of at most T terms, each a few roundings wide.
constexpr double kEqual = 8 * static_cast<double>(kLength) * std::numeric_limits<double>::epsilon();

Array row(const Array& x, Index i) { return slice(x, 0, i, i + 1); }

/// Each row divided by its sum.
Array normalised(const Array& x) {
  return zip(x, sum(x, -1), [](Number a, Number b) { return a / b; });
}

/// Random q, k, v [T, D] of one head and what attention makes of them, without a mask and causal.
struct Example {
  Array q, k, v, scores, weights, causal, out, causal_out;

  explicit Example(std::uint64_t seed) {
    for (std::uint32_t stream = 0; Array * x : {&q, &k, &v}) {
      Random random(seed, stream++);
      *x = Array({kLength, kDepth});
      for (Number& value : x->data) value = random.normal();
    }
    attend();
  }
  void attend() {
    scores = matmul(q, transpose(k));
    const Array scaled = scores * Number(1 / std::sqrt(static_cast<double>(kDepth)));
    weights = softmax(scaled);
    causal = softmax(past(scaled, -std::numeric_limits<double>::infinity()));
    out = matmul(weights, v);
    causal_out = matmul(causal, v);
  }
  Experiment experiment(const std::string& title, const std::string& map_title) const {
    Experiment made;
    made.title = title;
    made.maps.push_back(map_of(map_title, {"no mask", "causal"}, {weights, causal}));
    made.numbers = {{"q", nested(q)}, {"k", nested(k)}, {"v", nested(v)}, {"weights", nested(weights)},
        {"causal_weights", nested(causal)}, {"out", nested(out)}, {"causal_out", nested(causal_out)}};
    return made;
  }
};

/// x[t] = x[0] for every position t.
Array repeated(const Array& x) { return take(x, 0, std::vector<Index>(kLength, 0)); }

}  // namespace

Experiment ablate_same_q(const AblateOptions& options, Context&) {
  Example example(options.seed);
  example.q = repeated(example.q);
  example.attend();
  const Array &weights = example.weights, &causal = example.causal;
  const double rows = largest(weights - row(weights, 0)), out_rows = largest(example.out - row(example.out, 0));
  const double causal_rows = largest(past(causal - row(causal, 0), 0));
  const Array whole_row = take(causal, 0, std::vector<Index>(kLength, kLength - 1));  // which sees everything
  const double renormalised = largest(causal - normalised(past(whole_row, 0)));
  Experiment experiment = example.experiment("The same query for every position: q[i] = q[0]", "same q");
  experiment.claims = {{"Without a mask every position gets the same row and the same output: the query is what makes "
                        "positions attend to different tokens.",
                           rows <= kEqual && out_rows <= kEqual * largest(example.v),
                           fmt::format("rows differ by {}, outputs by {}", small_text(rows), small_text(out_rows))},
      {"With the causal mask the rows do differ, but only by what they may see: each is the last row cut to its prefix "
       "and divided by what is left.",
          causal_rows > 0.1 && renormalised <= kEqual,
          fmt::format(
              "rows differ by {:.2f}, from the renormalised prefix by {}", causal_rows, small_text(renormalised))}};
  experiment.numbers.update(
      {{"rows_differ", rows}, {"causal_rows_differ", causal_rows}, {"causal_from_renormalised", renormalised}});
  return experiment;
}

Experiment ablate_same_k(const AblateOptions& options, Context&) {
  Example example(options.seed);
  example.k = repeated(example.k);
  example.attend();
  const Array ones({kLength, kLength}, 1), first = slice(example.scores, 1, 0, 1);
  const double uniform = largest(example.weights - normalised(ones));
  const double causal = largest(example.causal - normalised(past(ones, 0)));
  const double pooled = largest(example.out - mean(example.v, 0)), within_row = largest(example.scores - first);
  const auto [lowest, highest] = std::ranges::minmax(first.data, {}, &Number::value);
  const double within_column = highest.value - lowest.value;
  Experiment experiment = example.experiment("The same key for every position: k[j] = k[0]", "same k");
  experiment.claims = {
      {fmt::format("Without a mask every weight is 1/T = 1/{}: attention is average pooling again. The key is how a "
                   "position is found.",
           kLength),
          uniform <= kEqual && pooled <= kEqual * largest(example.v),
          fmt::format("{} from 1/T; output {} from the mean of v", small_text(uniform), small_text(pooled))},
      {"With the causal mask row i is 1/(i+1): the average of what came before.", causal <= kEqual,
          fmt::format("{} from 1/(i+1)", small_text(causal))},
      {"The scores are constant along each row, and not the same from row to row: softmax forgets what a whole row "
       "shares.",
          within_row == 0 && within_column > 1,
          fmt::format(
              "scores vary by {} within a row and by {:.1f} within a column", small_text(within_row), within_column)}};
  experiment.numbers.update({{"from_uniform", uniform}, {"causal_from_uniform", causal}, {"out_from_mean", pooled},
      {"scores_vary_within_row", within_row}, {"scores_vary_within_column", within_column}});
  return experiment;
}

Experiment ablate_zero_v(const AblateOptions& options, Context&) {
  const Example whole(options.seed);
  Example example = whole;
  example.v = Array(whole.v.shape);
  example.attend();
  const double out = std::max(largest(example.out), largest(example.causal_out));
  const double before = std::min(largest(whole.out), largest(whole.causal_out));
  const double weights = std::max(largest(example.weights - whole.weights), largest(example.causal - whole.causal));
  Experiment experiment = example.experiment("Values of zero: v = 0", "v = 0");
  experiment.claims = {
      {"However fine the weights, the output is 0, with the mask and without: v is what is passed on, the weights only "
       "say in which mixture.",
          out == 0 && weights == 0 && before > 0.1,
          fmt::format("largest output {} (before: {:.2f}); weights moved by {}", small_text(out), before,
              small_text(weights))}};
  experiment.numbers.update({{"largest_output", out}, {"largest_output_before", before}, {"weights_moved", weights}});
  return experiment;
}

view::AttentionMap map_of(
    const std::string& title, const std::vector<std::string>& words, const std::vector<Array>& weights) {
  const Index length = weights.front().size(0);
  Tensor<float> heads({static_cast<Index>(weights.size()), length, length});
  float* next = heads.data();
  for (const Array& one : weights) {
    for (const Number& weight : one.data) *next++ = static_cast<float>(weight.value);
  }
  view::AttentionMap map = view::make_map(View<const float, 3>(heads), {}, title);
  map.head_names = words;
  return map;
}

}  // namespace qkv::cli
