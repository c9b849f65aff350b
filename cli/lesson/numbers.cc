// The numbers that the lesson's texts name, each by its formula, on explain's layer.
#include <cmath>
#include <limits>
#include <numeric>

#include "lesson/lesson.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"

namespace qkv::cli {
namespace {

using judge::matmul;
using judge::Number;

constexpr Index kTokens = 3, kBlue = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Head h of [1, H, L, d], [L, d].
Array head_of(const Array& heads, Index h) {
  return reshape(slice(heads, 1, h, h + 1), {heads.size(2), heads.size(3)});
}
Array row_of(const Array& x, Index i) { return slice(x, 0, i, i + 1); }

std::vector<double> values(const Array& x) {
  std::vector<double> all;
  for (const Number& number : x.data) all.push_back(number.value);
  return all;
}
double total(const Array& x) {
  const std::vector<double> all = values(x);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

/// [L, L] with `fill` where a pair is hidden.
template <class Hides> Array filled(Array x, double fill, Hides hides) {
  for (Index n = 0; n < x.count(); ++n) {
    if (hides(n / kTokens, n % kTokens)) x[n] = fill;
  }
  return x;
}

class Names {
 public:
  explicit Names(NamedNumbers& all) : all_(all) {}
  void add(const std::string& name, const Array& x) { all_[name] = values(x); }
  void add(const std::string& name, std::vector<double> x) { all_[name] = std::move(x); }
  /// name.I, name.like, name.blue
  void rows(const std::string& name, const Array& x) {
    for (Index i = 0; i < kTokens; ++i) add(name + "." + tokens()[static_cast<std::size_t>(i)], row_of(x, i));
  }

 private:
  NamedNumbers& all_;
};

/// Step 12's model: the default one of `qkv train`.
void add_first_loss(Names& names) {
  const double symbols = static_cast<double>(lm::CharTokenizer::from_text(lm::default_text()).vocab_size());
  const lm::AttentionLM model({.vocab_size = static_cast<Index>(symbols)});
  names.add("symbols", {symbols});
  names.add("parameters", {static_cast<double>(model.parameter_count())});
  names.add("first-loss", {std::log(symbols)});
  names.add("first-loss-bits", {std::log2(symbols)});
  names.add("first-loss-decimal", {std::log10(symbols)});
  names.add("first-probability", {1 / symbols});
}

}  // namespace

LessonNumbers lesson_numbers(Context& context) {
  LessonNumbers lesson{{}, walk_layer(context)};
  judge::Arrays& a = lesson.example.arrays;
  const Example split = compare_splits(lesson.example);
  Names names(lesson.named);
  const Array q = head_of(a["q_heads"], 0), k = head_of(a["k_heads"], 0), v = head_of(a["v_heads"], 0);
  const double root = std::sqrt(2.0);
  const Array products = matmul(q, transpose(k)), scaled = products * Number(1 / root), weights = softmax(scaled);
  const auto blue = [](const Array& x) { return row_of(x, kBlue); };

  names.rows("q", q);
  names.rows("k", k);
  names.rows("v", v);
  for (const std::string name : {"x", "q", "k", "v"})
    names.rows(name == "x" ? name : name + "-all", reshape(a[name], {kTokens, 4}));
  names.rows("scores", products);
  names.rows("scaled", scaled);
  names.rows("weights", weights);
  names.rows("out", matmul(weights, v));
  const Array sums = judge::sum(v, 0);
  names.add("sum.v", sums);
  names.add("mean", judge::mean(v, 0));
  names.add("d", {2});
  names.add("p", {0.1});
  names.add("shape", {1, kTokens, 4, 2, 2});
  names.add("roots", {64, 8, 4096, 64});

  // Mistakes at scores and softmax.
  names.add("products-q.blue", blue(matmul(q, transpose(q))));
  names.add("products-v.blue", blue(matmul(q, transpose(v))));
  names.add("scaled-by-d.blue", blue(products * Number(0.5)));
  names.add("scaled-up.blue", blue(products * Number(root)));
  names.add("scaled-by-keys.blue", blue(products * Number(1 / std::sqrt(3.0))));
  const Array unscaled = softmax(products), s = blue(scaled), p = blue(weights);
  const Array exponentials = map(s, [&](Number x) { return Number(std::exp(x.value - judge::largest(s))); });
  names.add("weights-unscaled.blue", blue(unscaled));
  names.add("weights-columns.blue", blue(softmax(scaled, 0)));
  names.add("exp.blue", exponentials);
  names.add("sum.exp.blue", {total(exponentials)});
  names.add("exp-plain.blue", map(s, [](Number x) { return Number(std::exp(x.value)); }));
  names.add("weights-percent.blue", p * Number(100));
  names.add("weights-without-exp.blue", s * Number(1 / total(s)));
  names.add("out-of-keys.blue", matmul(p, k));
  names.add("out-of-queries.blue", matmul(p, q));
  names.add("out-unscaled.blue", matmul(blue(unscaled), v));
  names.add("out-of-exp.blue", matmul(exponentials, v));
  names.add("out-of-scores.blue", matmul(s, v));
  names.add("v-transposed.I", row_of(matmul(reshape(a["x"], {kTokens, 4}), a["W_v"]), 0));

  // Masks.
  const auto later = [](Index i, Index j) { return j > i; };
  const auto padding = [](Index, Index j) { return j == kBlue; };
  const Array causal = softmax(filled(scaled, -kInfinity, later)),
              padded = softmax(filled(scaled, -kInfinity, padding));
  const auto row = [&](const Array& x, Index i) { return row_of(x, i); };
  names.rows("causal", causal);
  names.rows("padded", padded);
  names.add("causal-fill-zero.like", row(softmax(filled(scaled, 0, later)), 1));
  names.add("causal-after-softmax.like", row(filled(weights, 0, later), 1));
  names.add("sum.causal-after-softmax.like", {total(row(filled(weights, 0, later), 1))});
  names.add("causal-off-by-one.like",
      row(softmax(filled(scaled, -kInfinity, [](Index i, Index j) { return i > 0 && j >= i; })), 1));
  names.add("padded-fill-zero.I", row(softmax(filled(scaled, 0, padding)), 0));
  names.add("padded-after-softmax.I", row(filled(weights, 0, padding), 0));

  // Dropout that drops blue.
  const Array kept = blue(filled(weights, 0, padding));
  names.add("dropped.blue", kept * Number(1 / 0.9));
  names.add("dropped-unscaled.blue", kept);
  names.add("dropped-by-p.blue", kept * Number(1 / 0.1));
  names.add("dropped-times.blue", kept * Number(0.9));
  names.add("dropped-renormalised.blue", kept * Number(1 / total(kept)));

  names.rows("head-0", q);
  names.rows("head-1", head_of(a["q_heads"], 1));
  names.rows("view-head-1", head_of(split["wrong.q"], 1));
  names.add("moved", {split["moved"][0].value, static_cast<double>(a["q"].count())});

  // Backward of the first number of blue's output.
  const Array dp = reshape(slice(v, 1, 0, 1), {1, kTokens});
  const Number delta = total(p * dp);
  const auto less = [](const Array& x, Number y) { return map(x, [y](Number one) { return one - y; }); };
  const Array ds = p * less(dp, delta);
  names.add("dp.blue", dp);
  names.add("delta.blue", {delta.value});
  names.add("ds.blue", ds);
  names.add("dq.blue", matmul(ds, k) * Number(1 / root));
  names.add("ds-no-row-term.blue", p * dp);
  names.add("ds-without-weights.blue", less(dp, delta));
  names.add("ds-diagonal.blue", p * dp - p * p * dp);
  add_first_loss(names);

  // What drawings show beside explain's arrays.
  a["lesson.q"] = q, a["lesson.k"] = k, a["lesson.v"] = v;
  a["lesson.q.blue"] = blue(q);
  a["lesson.mean"] = judge::mean(v, 0);
  a["lesson.products.blue"] = blue(products), a["lesson.scaled.blue"] = s;
  a["lesson.weights.blue"] = p, a["lesson.unscaled.blue"] = blue(unscaled), a["lesson.exp.blue"] = exponentials;
  a["lesson.out.blue"] = matmul(p, v);
  a["lesson.scaled"] = scaled, a["lesson.weights"] = weights, a["lesson.causal"] = causal, a["lesson.padded"] = padded;
  a["lesson.dropped.blue"] = kept * Number(1 / 0.9);
  a["lesson.right.0"] = q, a["lesson.right.1"] = head_of(a["q_heads"], 1);
  a["lesson.wrong.0"] = head_of(split["wrong.q"], 0), a["lesson.wrong.1"] = head_of(split["wrong.q"], 1);
  a["lesson.dp.blue"] = dp, a["lesson.ds.blue"] = ds, a["lesson.dq.blue"] = matmul(ds, k) * Number(1 / root);
  return lesson;
}

}  // namespace qkv::cli
