// Linear attention: the feature map, the sum that divides, what a causal state holds.
#include <cmath>
#include <string>
#include <utility>

#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

Number elu_plus_one(Number x) { return x.value > 0 ? x + Number(1) : exp(x); }

Edit features_by(std::function<Number(Number)> of_queries, std::function<Number(Number)> of_keys) {
  return instead("features", [of_queries = std::move(of_queries), of_keys = std::move(of_keys)](Work& work) {
    work["features_q"] = map(work.at("q"), of_queries);
    work["features_k"] = map(work.at("k"), of_keys);
  });
}
Edit features_by(const std::function<Number(Number)>& both) { return features_by(both, both); }

Number same(Number x) { return x; }

Edit divided(std::function<Array(const Work& work)> divisor) {
  return instead("normalise", [divisor = std::move(divisor)](Work& work) {
    work["weights"] = zip(work.at("products"), divisor(work), [](Number p, Number total) { return p / total; });
  });
}

double root_of_width(const Work& work) { return std::sqrt(static_cast<double>(work.at("q").size(-1))); }

Entry linear_entry(std::string_view id, std::string_view says, std::string_view hint, std::string_view term, Edits edits,
                   std::string_view group = {}) {
  return Entry(id, says, hint, term, {"linear"}, std::move(edits)).in(group);
}

constexpr std::string_view kMap = "Which numbers may a weight be made of, if every weight must be positive?";
constexpr std::string_view kSum = "Let all values be 1. What should the output be?";

}  // namespace

std::vector<Entry> linear_entries() {
  return {
      linear_entry("linear-not-normalised",
                   "The output is not divided by the sum of the weights: phi(q) times the sum of all phi(k).", kSum, "softmax",
                   {instead("normalise", [](Work& work) { work["weights"] = work.at("products"); })}, "divide"),
      linear_entry("linear-divided-by-length",
                   "The output is divided by the number of keys; it is divided by the sum of the weights.", kSum, "softmax",
                   {divided([](const Work& work) { return Array({1}, static_cast<double>(work.at("k").size(2))); })}, "divide"),
      linear_entry("linear-normalised-over-queries",
                   "The weights are divided by their sum over the queries; each row is divided by its own.", kSum, "softmax",
                   {divided([](const Work& work) { return sum(work.at("products"), -2); })}, "divide"),
      linear_entry(
          "linear-normaliser-not-causal",
          "The sum that divides runs over all keys, the future included; the values' sum is causal.", kSum, "softmax",
          {divided([](const Work& work) { return sum(matmul(work.at("features_q"), transpose(work.at("features_k"))), -1); })},
          "divide"),
      linear_entry("linear-normaliser-of-query",
                   "The sum that divides is made of the queries' features; it is made of the keys'.", kSum, "softmax",
                   {divided([](const Work& work) {
                     const Array products = matmul(work.at("features_q"), transpose(work.at("features_q")));
                     if (!work.causal) return sum(products, -1);
                     need(products.shape == work.at("visible").shape);
                     return sum(products * work.at("visible"), -1);
                   })},
                   "divide"),
      linear_entry("linear-no-feature-map",
                   "There is no feature map: q and k are used as they are, and weights can be negative.", kMap, "scores",
                   {features_by(same)}, "features"),
      linear_entry("linear-query-not-mapped", "The feature map is applied to the keys only; queries need it too.", kMap,
                   "scores", {features_by(same, elu_plus_one)}, "features"),
      linear_entry("linear-key-not-mapped", "The feature map is applied to the queries only; keys need it too.", kMap, "scores",
                   {features_by(elu_plus_one, same)}, "features"),
      linear_entry("linear-map-on-values", "The feature map is applied to the values too; it belongs on queries and keys.",
                   "Let there be one key. What should the output be?", "values",
                   {before("mix", [](Work& work) { work["v"] = map(work.at("v"), elu_plus_one); })}),
      linear_entry("linear-elu-without-one", "The feature map is elu(x) without + 1: weights can be negative.", kMap, "scores",
                   {features_by([](Number x) { return x.value > 0 ? x : exp(x) - Number(1); })}, "features"),
      linear_entry("linear-relu-map", "The feature map is relu(x); it is elu(x) + 1, which is never 0.", kMap, "scores",
                   {features_by([](Number x) { return max(x, Number(0)); })}, "features"),
      linear_entry("linear-relu-map", "The feature map is relu(x) + 1; it is elu(x) + 1.", kMap, "scores",
                   {features_by([](Number x) { return max(x, Number(0)) + Number(1); })}, "features"),
      linear_entry("linear-elu-two", "The feature map is elu(x) + 2; it is elu(x) + 1.", kMap, "scores",
                   {features_by([](Number x) { return elu_plus_one(x) + Number(1); })}, "features"),
      linear_entry("linear-exp-map", "The feature map is exp(x); it is elu(x) + 1.", kMap, "scores",
                   {features_by([](Number x) { return exp(x); })}, "features"),
      linear_entry("linear-softmax-map",
                   "Queries go through softmax over features and keys through softmax over features; the map is elu(x) + 1.",
                   kMap, "scores",
                   {instead("features",
                            [](Work& work) {
                              work["features_q"] = softmax(work.at("q"), -1);
                              work["features_k"] = softmax(work.at("k"), -1);
                            })},
                   "features"),
      linear_entry("linear-softmax-map",
                   "Queries go through softmax over features and keys through softmax over tokens; the map is elu(x) + 1.",
                   kMap, "scores",
                   {instead("features",
                            [](Work& work) {
                              work["features_q"] = softmax(work.at("q"), -1);
                              work["features_k"] = softmax(work.at("k"), -2);
                            })},
                   "features"),
      linear_entry("linear-scaled", "Queries are divided by sqrt(d) before the feature map; there is no scale here.",
                   "What does a factor on phi(q) do to weights that are divided by their sum? And a factor on q?", "scale",
                   {before("features", [](Work& work) { work["q"] = work.at("q") * Number(1 / root_of_width(work)); })},
                   "scale"),
      linear_entry("linear-scaled", "Queries and keys are scaled before the feature map; there is no scale here.",
                   "What does a factor on phi(q) do to weights that are divided by their sum? And a factor on q?", "scale",
                   {before("features",
                           [](Work& work) {
                             const Number factor(1 / std::sqrt(root_of_width(work)));
                             for (const char* name : {"q", "k"}) work[name] = work.at(name) * factor;
                           })},
                   "scale"),
      linear_entry("linear-softmax-instead",
                   "This is softmax attention; linear attention has phi(q) phi(k) instead of exp(q k / sqrt(d)).",
                   "Where is the square of the length, and how does linear attention avoid it?", "softmax",
                   {instead("products",
                            [](Work& work) {
                              work["products"] =
                                  matmul(work.at("q"), transpose(work.at("k"))) * Number(1 / root_of_width(work));
                            }),
                    instead("normalise",
                            [](Work& work) {
                              work["scores"] = work.at("products");
                              mask_step(work);
                              work["weights"] = softmax(work.at("scores"));
                            })},
                   "features"),
      linear_entry("linear-causal-ignored", "There is no causal sum: every token sees the future.",
                   "Change the last token. Does the first output change?", "mask", {instead("hide", [](Work&) {})}, "causal"),
      linear_entry("linear-causal-unasked", "The sums are causal although the call did not ask for it.",
                   "Change the last token. Does the first output change?", "mask",
                   {instead("see",
                            [](Work& work) {
                              const bool causal = std::exchange(work.causal, true);
                              see_step(work);
                              work.causal = causal;
                            })},
                   "causal"),
      linear_entry("linear-causal-unasked", "The sums are causal although the call did not ask for it.",
                   "Change the last token. Does the first output change?", "mask",
                   {after("see",
                          [](Work& work) {
                            Array& visible = work["visible"];  // query i sees keys 0 to i, however many there are
                            const Index queries = visible.size(2), keys = visible.size(3);
                            for (Index n = 0; n < visible.count(); ++n) {
                              if (n % keys > n / keys % queries) visible[n] = 0;
                            }
                          })},
                   "causal"),
  };
}

}  // namespace qkv::judge
