// Gradients by hand: softmax's Jacobian, the scale, transposes, and which array meets which.
#include <cmath>
#include <string>
#include <utility>

#include "judge/entry_edits.h"
#include "judge/tasks/derivative.h"

namespace qkv::judge {
namespace {

/// An edit of one stage of the derivative, wherever it stands.
struct Change {
  std::string_view DerivativeStages::*stage;
  Where where;
  PrefixedStep step;
};

struct Says {
  std::string_view id, says, hint, term;
  std::string_view group = {};
};

Entry entry(const Says& s, std::string_view part, Edits edits) {
  return Entry(s.id, s.says, s.hint, s.term, {part}, std::move(edits)).in(s.group);
}

Edits edits_of(const std::vector<Change>& changes, const DerivativeStages& stages, const std::string& prefix) {
  Edits edits;
  for (const Change& change : changes) edits.push_back({change.where, stages.*change.stage, prefixed(prefix, change.step)});
  return edits;
}

/// The mistake in the function, in the layer, and in both: two functions are written apart or one calls the other. A model has the
/// first.
void add(std::vector<Entry>& entries, const Says& says, const std::vector<Change>& changes,
         std::string_view part = "derivative") {
  const Edits plain = edits_of(changes, kDerivative, ""), layer = edits_of(changes, kLayerDerivative, "layer.");
  Edits both = plain;
  both.insert(both.end(), layer.begin(), layer.end());
  entries.push_back(entry(says, part, both));
  entries.push_back(entry(says, part, plain));
  entries.push_back(entry(says, part, layer));
}

Change instead_of(std::string_view DerivativeStages::*stage, PrefixedStep step) {
  return {stage, Where::kInstead, std::move(step)};
}

/// dscores from the weights and their gradient.
Change dscores_by(std::function<Array(const Array& weights, const Array& dweights)> rule) {
  return instead_of(&DerivativeStages::dscores, [rule = std::move(rule)](Work& work, const std::string& p) {
    work[p + "dscores"] = rule(work.at(p + "weights"), work.at(p + "dweights"));
  });
}

Change scaled_by(std::function<double(double factor)> rule) {
  return instead_of(&DerivativeStages::dscale, [rule = std::move(rule)](Work& work, const std::string& p) {
    work[p + "dscaled"] = work.at(p + "dscores") * Number(rule(work.at(p + "factor")[0].value));
  });
}

/// An output as the product of two arrays; what the shapes do not allow raises an error in every language.
Change product(std::string_view DerivativeStages::*stage, const char* to, const char* a, bool transposed, const char* b) {
  return instead_of(stage, [=](Work& work, const std::string& p) {
    const Array& left = work.at(p + a);
    const Array& right = work.at(p + b);
    const Array factor = transposed ? transpose(left) : left;
    need(factor.size(-1) == right.size(-2));
    work[p + to] = matmul(factor, right);
  });
}

Change unscaled(std::string_view DerivativeStages::*stage, const char* name) {
  return {stage, Where::kAfter, [name](Work& work, const std::string& p) {
            work[p + name] = work.at(p + name) * (Number(1) / work.at(p + "factor")[0]);
          }};
}

constexpr std::string_view kRow = "A row of the weights sums to 1 whatever the scores are. What does a row of dS sum to?";
constexpr std::string_view kScale = "S = q k^T / sqrt(d). What is dS/d(q k^T)?";
constexpr std::string_view kShapes = "Let there be three queries and five keys. Which shapes have q, k, P, dq and dk?";

void jacobian(std::vector<Entry>& out) {
  add(out,
      {"backward-no-row-term", "dS = P * dP: the row sum of P * dP is not subtracted. dS = P * (dP - rowsum(P * dP)).", kRow,
       "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * d; })});
  add(out,
      {"backward-diagonal-jacobian",
       "dS = P * (1 - P) * dP: only the diagonal of softmax's Jacobian, as if each weight hung on its own score alone.", kRow,
       "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) {
        return weights * map(weights, [](Number w) { return Number(1) - w; }) * d;
      })});
  add(out,
      {"backward-dp-without-weights", "dS = dP - rowsum(P * dP): the factor P in front is missing.", kRow, "softmax",
       "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return d - sum(weights * d, -1); })});
  add(out,
      {"backward-row-term-without-weights", "The row sum is that of dP; it is that of P * dP.", kRow, "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * (d - sum(d, -1)); })});
  add(out,
      {"backward-row-term-mean", "The mean of P * dP over the row is subtracted; it is the sum.", kRow, "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * (d - mean(weights * d, -1)); })});
  add(out,
      {"backward-row-term-over-queries", "P * dP is summed over the queries; softmax runs over the keys, so the sum does.",
       kRow, "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * (d - sum(weights * d, -2)); })});
  add(out, {"backward-row-term-added", "The row sum of P * dP is added; it is subtracted.", kRow, "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * (d + sum(weights * d, -1)); })});
  add(out, {"backward-no-softmax", "dS = dP: softmax's derivative is left out.", kRow, "softmax", "dscores"},
      {dscores_by([](const Array&, const Array& d) { return d; })});
  add(out, {"backward-sign", "dS has the wrong sign.", kRow, "softmax", "dscores"},
      {dscores_by([](const Array& weights, const Array& d) { return weights * (d - sum(weights * d, -1)) * Number(-1); })});
}

void scales(std::vector<Entry>& out) {
  add(out, {"backward-no-scale", "dq and dk lack the factor 1/sqrt(d).", kScale, "scale", "dscale"},
      {scaled_by([](double) { return 1.0; })});
  add(out, {"backward-scale-twice", "dq and dk are divided by sqrt(d) twice.", kScale, "scale", "dscale"},
      {scaled_by([](double f) { return f * f; })});
  add(out,
      {"backward-scale-multiplied", "dq and dk are multiplied by sqrt(d); they are divided by it.", kScale, "scale", "dscale"},
      {scaled_by([](double f) { return 1 / f; })});
  add(out, {"backward-scale-on-query-only", "dk lacks the factor 1/sqrt(d); dq has it.", kScale, "scale", "dscale"},
      {unscaled(&DerivativeStages::dk, "dk")});
  add(out, {"backward-scale-on-key-only", "dq lacks the factor 1/sqrt(d); dk has it.", kScale, "scale", "dscale"},
      {unscaled(&DerivativeStages::dq, "dq")});
  add(out,
      {"backward-scale-on-values", "dv is divided by sqrt(d) too; the scale is part of the scores alone.", kScale, "scale"},
      {{&DerivativeStages::dv, Where::kAfter,
        [](Work& work, const std::string& p) { work[p + "dv"] = work.at(p + "dv") * work.at(p + "factor")[0]; }}});
  const auto factor = [](std::function<double(double width)> rule) {
    return instead_of(&DerivativeStages::factor, [rule = std::move(rule)](Work& work, const std::string& p) {
      work[p + "factor"] = Array({1}, rule(static_cast<double>(work.at(p + "q").size(-1))));
    });
  };
  add(out, {"no-scale", "The scores are not divided by sqrt(d), forward or backward.", kScale, "scale", "scale"},
      {factor([](double) { return 1.0; })});
  add(out, {"scale-1-over-d", "The scores are divided by d, not by sqrt(d), forward and backward.", kScale, "scale", "scale"},
      {factor([](double d) { return 1 / d; })});
  add(out,
      {"backward-forward-not-scaled", "The weights are computed again without the scale; dq and dk have it.", kScale, "scale",
       "scale"},
      {{&DerivativeStages::scores, Where::kAfter, [](Work& work, const std::string& p) {
          work[p + "scores"] = work.at(p + "scores") * (Number(1) / work.at(p + "factor")[0]);
        }}});
}

void products(std::vector<Entry>& out) {
  using D = DerivativeStages;
  add(out,
      {"backward-ds-transposed", "dq and dk meet dS the wrong way round: dq = dS^T k, dk = dS q. It is dq = dS k, dk = dS^T q.",
       kShapes, "gradient", "ds"},
      {product(&D::dq, "dq", "dscaled", true, "k"), product(&D::dk, "dk", "dscaled", false, "q")});
  add(out, {"backward-ds-transposed", "dq = dS^T k; it is dS k.", kShapes, "gradient", "ds"},
      {product(&D::dq, "dq", "dscaled", true, "k")});
  add(out, {"backward-ds-transposed", "dk = dS q; it is dS^T q.", kShapes, "gradient", "ds"},
      {product(&D::dk, "dk", "dscaled", false, "q")});
  add(out, {"backward-dq-from-queries", "dq = dS q; it is dS k.", kShapes, "gradient", "ds"},
      {product(&D::dq, "dq", "dscaled", false, "q")});
  add(out, {"backward-dk-from-keys", "dk = dS^T k; it is dS^T q.", kShapes, "gradient", "ds"},
      {product(&D::dk, "dk", "dscaled", true, "k")});
  const Says from_weights = {"backward-dq-from-weights",
                             "dq = dP k: the gradient of the weights is taken for that of the scores.", kShapes, "gradient",
                             "ds"};
  add(out, from_weights, {product(&D::dq, "dq", "dweights", false, "k")});
  add(out, from_weights,
      {product(&D::dq, "dq", "dweights", false, "k"), {&D::dq, Where::kAfter, [](Work& work, const std::string& p) {
                                                         work[p + "dq"] = work.at(p + "dq") * work.at(p + "factor")[0];
                                                       }}});
  add(out, {"backward-dv-weights-not-transposed", "dv = P dO; it is P^T dO.", kShapes, "values", "dv"},
      {product(&D::dv, "dv", "weights", false, "dvalues")});
  add(out,
      {"backward-dv-from-scores", "dv = S^T dO, with the scores; it is P^T dO, with the weights.", kShapes, "values", "dv"},
      {product(&D::dv, "dv", "scores", true, "dvalues")}, "backward");  // in a causal model -inf leaves NaN everywhere
  add(out, {"backward-dv-from-values", "dv = P^T v; it is P^T dO.", kShapes, "values", "dv"},
      {instead_of(&D::dv, [](Work& work, const std::string& p) {
        need(work.at(p + "v").size(-2) == work.at(p + "weights").size(-2));
        work[p + "dv"] = matmul(transpose(work.at(p + "weights")), work.at(p + "v"));
      })});
  add(out,
      {"backward-dp-from-output", "dP = O v^T, with the output; it is dO v^T, with the output's gradient.", kShapes, "gradient",
       "dp"},
      {instead_of(&D::dweights, [](Work& work, const std::string& p) {
        work[p + "dweights"] = matmul(work.at(p + "values"), transpose(work.at(p + "v")));
      })});
  add(out, {"backward-dp-from-keys", "dP = dO k^T; it is dO v^T.", kShapes, "gradient", "dp"},
      {instead_of(&D::dweights, [](Work& work, const std::string& p) {
        work[p + "dweights"] = matmul(work.at(p + "dvalues"), transpose(work.at(p + "k")));
      })});
}

/// Mistakes of the function's call, not of a formula.
void calls(std::vector<Entry>& out) {
  const auto exchange = [](const std::string& a, const std::string& b) {
    return after(kDerivative.dk, [a, b](Work& work) { std::swap(work[a], work[b]); });
  };
  out.push_back(
      entry({"backward-dq-dk-exchanged", "dq and dk are exchanged where they are returned.", kShapes, "gradient", "order"},
            "backward", {exchange("dq", "dk")}));
  out.push_back(
      entry({"backward-dk-dv-exchanged", "dk and dv are exchanged where they are returned.", kShapes, "gradient", "order"},
            "backward", {exchange("dk", "dv")}));
  out.push_back(entry({"backward-causal-ignored", "The weights are computed again without the causal mask.",
                       "Should a change of the last value change dq of the first query?", "mask", "causal"},
                      "backward", {before(kDerivative.see, [](Work& work) { work["causal"] = Array({1}, 0); })}));
  out.push_back(
      entry({"backward-causal-unasked", "The weights are computed again with a causal mask that the call did not ask for.",
             "Should a change of the last value change dq of the first query?", "mask", "causal"},
            "backward", {before(kDerivative.see, [](Work& work) {
              need(work.at("q").size(-2) <= work.at("k").size(-2));
              work["causal"] = Array({1}, 1);
            })}));
}

/// The layer around the function.
void layers(std::vector<Entry>& out) {
  const auto layer = [&](const Says& says, Edits edits) { out.push_back(entry(says, "backward", std::move(edits))); };
  const auto step = [](PrefixedStep rule) { return prefixed("layer.", std::move(rule)); };
  constexpr std::string_view kPaths = "On how many ways does x reach the output?";
  constexpr std::string_view kWeight = "y = x W. Which shapes have x, W, dy, dW and dx, if W is not square?";
  const auto dx_by = [&](std::string names, bool transposed) {
    return instead("layer input", step([names, transposed](Work& work, const std::string& p) {
                     Array dx(work.probe.at("x").shape);
                     for (const char c : names) {
                       const Array& weight = work.probe.at(std::string("W_") + c);
                       dx = dx + matmul(work.at(p + "d" + c), transposed ? transpose(weight) : weight);
                     }
                     work["dx"] = std::move(dx);
                   }));
  };
  layer({"backward-dx-one-path", "dx counts the queries' way alone; x reaches the output through q, k and v.", kPaths,
         "gradient", "dx"},
        {dx_by("q", true)});
  layer({"backward-dx-one-path", "dx counts the values' way alone; x reaches the output through q, k and v.", kPaths,
         "gradient", "dx"},
        {dx_by("v", true)});
  layer({"backward-dx-path-missing", "dx lacks the queries' way; x reaches the output through q, k and v.", kPaths, "gradient",
         "dx"},
        {dx_by("kv", true)});
  layer({"backward-dx-path-missing", "dx lacks the keys' way; x reaches the output through q, k and v.", kPaths, "gradient",
         "dx"},
        {dx_by("qv", true)});
  layer({"backward-dx-path-missing", "dx lacks the values' way; x reaches the output through q, k and v.", kPaths, "gradient",
         "dx"},
        {dx_by("qk", true)});
  layer({"backward-dx-weight-not-transposed", "dx = dq W_q + dk W_k + dv W_v; the matrices belong transposed.", kWeight,
         "projection", "dx"},
        {dx_by("qkv", false)});
  layer({"backward-dw-transposed", "dW_q, dW_k, dW_v are transposed: dq^T x. It is x^T dq.", kWeight, "projection", "dw"},
        {after("layer weights", step([](Work& work, const std::string&) {
                 for (const char* name : {"dW_q", "dW_k", "dW_v"}) work[name] = transpose(work.at(name));
               }))});
  layer({"backward-dw-transposed", "dW_q, dW_k, dW_v and dW_o are transposed.", kWeight, "projection", "dw"},
        {after("layer weights", step([](Work& work, const std::string&) {
                 for (const char* name : {"dW_q", "dW_k", "dW_v", "dW_o"}) work[name] = transpose(work.at(name));
               }))});
  layer({"backward-dwo-transposed", "dW_o is transposed: dO^T values. It is values^T dO.", kWeight, "output", "dw"},
        {after("layer output", step([](Work& work, const std::string&) { work["dW_o"] = transpose(work.at("dW_o")); }))});
  layer({"backward-dw-batch-mean", "The gradients of the matrices are averaged over the batch; they are summed.",
         "The loss is a sum over all sequences. What is its derivative?", "projection", "dw"},
        {after("layer weights", step([](Work& work, const std::string&) {
                 const Number share(1 / static_cast<double>(work.probe.at("x").size(0)));
                 for (const char* name : {"dW_q", "dW_k", "dW_v", "dW_o"}) work[name] = work.at(name) * share;
               }))});
  layer({"backward-output-ignored",
         "The gradient does not pass the output projection: dO is taken for the gradient of what the head gave.", kWeight,
         "output", "output"},
        {after("layer output",
               step([](Work& work, const std::string& p) { work[p + "dvalues"] = work.probe.at("dout_layer"); }))});
  layer({"backward-output-not-transposed", "dO passes the output projection the wrong way round: dO W_o. It is dO W_o^T.",
         kWeight, "output", "output"},
        {after("layer output", step([](Work& work, const std::string& p) {
                 work[p + "dvalues"] = matmul(work.probe.at("dout_layer"), work.probe.at("W_o"));
               }))});
  layer({"backward-dwo-from-output", "dW_o is made of the layer's output; it is made of what enters the output projection.",
         kWeight, "output", "dw"},
        {after("layer output", step([](Work& work, const std::string& p) {
                 work["dW_o"] =
                     weight_gradient(matmul(work.at(p + "values"), work.probe.at("W_o")), work.probe.at("dout_layer"));
               }))});
}

}  // namespace

std::vector<Entry> backward_entries() {
  std::vector<Entry> entries;
  jacobian(entries);
  scales(entries);
  products(entries);
  calls(entries);
  layers(entries);
  return entries;
}

}  // namespace qkv::judge
