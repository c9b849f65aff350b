// explain's layer forward and backward, each step by its formula, and the same steps in NumPy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "explain/explain.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

using judge::matmul;
using judge::merge_heads;
using judge::Number;
using judge::split_heads;

constexpr Index kHeads = 2, kTokens = 3;

Array whole(judge::Shape shape, std::initializer_list<int> numbers) {
  Array array(std::move(shape));
  std::ranges::copy(numbers, array.data.begin());
  return array;
}

Tensor<float> to_floats(const Array& x) { return to_f32(judge::to_tensor(x)); }

/// diag(p) - p p^T of a row of weights [1, n]: what a change of a score does to each weight.
Array jacobian_of(const Array& p) {
  Array jacobian = matmul(transpose(p), p) * Number(-1);
  for (Index j = 0; j < p.count(); ++j) jacobian[j * p.count() + j] = p[j] + jacobian[j * p.count() + j];
  return jacobian;
}

/// A layer's tensor in f32 against the steps, in units of what rounding allows.
struct Agreement {
  double apart = 0, over_bound = 0;

  void add(const AnyTensor& got, const Array& want) {
    const Tensor<double> numbers = to_f64(got);
    for (Index n = 0; n < want.count(); ++n) {
      const double difference = std::abs(numbers.data()[n] - want[n].value);
      apart = std::max(apart, difference);
      over_bound = std::max(
          over_bound, difference / (2 * want[n].error * static_cast<double>(std::numeric_limits<float>::epsilon())));
    }
  }
  Claim claim(std::string sentence) const {
    return {std::move(sentence), over_bound <= 1, small_text(apart) + " apart"};
  }
};

std::unique_ptr<nn::Layer> layer_of(const Example& walk) {
  StateDict state;
  for (const auto& [name, array] : {std::pair("query_proj.weight", "W_q"), {"key_proj.weight", "W_k"},
           {"value_proj.weight", "W_v"}, {"output_proj.weight", "W_o"}}) {
    state.add(name, any_tensor(to_floats(walk[array])));
  }
  return nn::load_layer("mha", state, {.num_heads = kHeads});
}

/// "np.array([[1, 0, 2, 1], [0, 1, 1, 0]])": whole numbers.
std::string numpy_array(const Array& x) {
  std::string text;
  for (Index n = 0; n < x.count(); ++n) {
    const bool first = n % x.size(-1) == 0;
    text += fmt::format("{}{:.0f}", n == 0 ? "[" : first ? "], [" : ", ", x[n].value);
  }
  return "np.array([" + text + "]])";
}

}  // namespace

const Lines& tokens() {
  static const Lines all{"I", "like", "blue"};
  return all;
}

Example walk_layer(Context& context) {
  Example walk;
  judge::Arrays& a = walk.arrays;
  a["x"] = whole({1, 3, 4}, {1, 0, 2, 1, 0, 1, 1, 0, 1, 2, 0, 2});
  a["W_q"] = whole({4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});    // q = x
  a["W_k"] = whole({4, 4}, {0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0});    // neighbours are exchanged
  a["W_v"] = whole({4, 4}, {1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1});    // neighbours are added
  a["W_o"] = whole({4, 4}, {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, -1, 0, 0, 1, 0, -1});  // the heads are mixed
  for (const std::string name : {"q", "k", "v"}) {
    a[name] = matmul(a["x"], transpose(a["W_" + name]));
    a[name + "_heads"] = split_heads(a[name], kHeads);
  }
  a["view"] = reshape(a["q"], {1, kTokens, kHeads, 2});
  a["products"] = matmul(a["q_heads"], transpose(a["k_heads"]));
  a["scores"] = a["products"] * Number(1 / std::sqrt(2.0));
  a["weights"] = softmax(a["scores"]);
  a["attended"] = matmul(a["weights"], a["v_heads"]);
  a["joined"] = merge_heads(a["attended"]);
  a["out"] = matmul(a["joined"], transpose(a["W_o"]));
  walk.steps = {
      {"x            [B, L, D]", "x", "the input, one row a token",
          {{{"x", "x"}, {"W_k", "W_k", Rows::kPlain}, {"W_v", "W_v", Rows::kPlain}, {"W_o", "W_o", Rows::kPlain}}}},
      {"q, k, v      [B, L, D]", "q", "q = x W_q^T, k = x W_k^T, v = x W_v^T", {{{"q", "q"}, {"k", "k"}, {"v", "v"}}}},
      {"view         [B, L, H, d]", "view", "the last axis is cut; nothing moves", {{{"q of", "view", Rows::kHeads}}}},
      {"transpose    [B, H, L, d]", "q_heads", "heads first: each head has every token", {{{"", "q_heads"}}}},
      {"q k^T        [B, H, L, L]", "products", "row: query; column: key", {{{"", "products"}}}},
      {"scores       [B, H, L, L]", "scores", "divided by sqrt(d) = 1.41", {{{"", "scores"}}}},
      {"weights      [B, H, L, L]", "weights", "softmax of each row", {{{"", "weights"}}}},
      {"weights v    [B, H, L, d]", "attended", "each row a mixture of the rows of v", {{{"", "attended"}}}},
      {"joined       [B, L, D]", "joined", "transposed back: heads side by side",
          {{{"joined", "joined"}, {"out = joined W_o^T", "out"}}}}};
  Tensor<float> weights;
  const Tensor<float> out = layer_of(walk)->forward(to_floats(a["x"]), {.weights = &weights, .context = &context});
  double worst = 0;
  for (const Number& row : sum(judge::to_array(any_tensor(weights)), -1).data)
    worst = std::max(worst, std::abs(row.value - 1));
  walk.claims.push_back({"Every row of weights adds up to 1.",
      worst <= 4 * kTokens * static_cast<double>(std::numeric_limits<float>::epsilon()),
      "largest distance from 1: " + small_text(worst)});
  Agreement agreement;
  agreement.add(any_tensor(out), a["out"]);
  walk.claims.push_back(agreement.claim("The layer gives what the same steps in plain loops give."));
  return walk;
}

Example walk_backward(const Example& layer, Context& context) {
  const Array &x = layer["x"], &q = layer["q_heads"], &k = layer["k_heads"], &v = layer["v_heads"],
              &p = layer["weights"];
  const Number scale = 1 / std::sqrt(2.0);
  const Array dout = whole({1, 3, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1});
  const Array d_o = split_heads(matmul(dout, layer["W_o"]), kHeads);  // out = joined W_o^T
  const Array dp = matmul(d_o, transpose(v));                         // o = p v
  const Array delta = sum(p * dp, -1), ds = p * (dp - delta);
  const Array dq = matmul(ds, k) * scale, dk = matmul(transpose(ds), q) * scale, dv = matmul(transpose(p), d_o);
  const auto first_row = [&](const Array& of) { return slice(reshape(of, {kHeads * kTokens, kTokens}), 0, 0, 1); };
  const Array jacobian = jacobian_of(first_row(p));
  Example back;
  const auto add = [&](const std::string& name, const Array& array) {  // without the axis of the only sequence
    back.arrays[name] = array.rank() > 2 ? reshape(array, {array.shape.begin() + 1, array.shape.end()}) : array;
  };
  add("dout", dout), add("dO", d_o), add("P", p), add("dP", dp), add("dS", ds), add("delta", delta), add("J", jacobian);
  add("dQ", dq), add("dK", dk), add("dV", dv);
  Array dx;
  for (const auto& [name, gradient] : {std::pair("W_q", &dq), {"W_k", &dk}, {"W_v", &dv}}) {
    const Array rows = merge_heads(*gradient), part = matmul(rows, layer[name]);
    add(std::string("d") + name, judge::weight_gradient(rows, x));  // q = x W_q^T
    dx = dx.data.empty() ? part : dx + part;
  }
  add("dW_o", judge::weight_gradient(dout, layer["joined"]));
  add("dx", dx);
  const Rows plain = Rows::kPlain;
  back.steps = {{"dout         [L, D]", "dout", "what arrives at the output: given", {{{"dout", "dout"}}},
                    {"dout = " + numpy_array(dout)}},
      {"dW_o, dO", "dO", "out = joined W_o^T",
          {{{"dW_o = dout^T joined", "dW_o", plain}}, {{"dO = dout W_o, cut into heads", "dO"}}},
          {"dW_o = dout.T @ joined(O)", "dO = heads(dout @ W_o)"}},
      {"dV           [H, L, d]", "dV", "O = P V: dV = P^T dO", {{{"", "dV"}}}, {"dV = P.swapaxes(1, 2) @ dO"}},
      {"dP           [H, L, L]", "dP", "O = P V: dP = dO V^T", {{{"", "dP"}}}, {"dP = dO @ V.swapaxes(1, 2)"}},
      {"delta        [H, L]", "delta", "rowsum(P * dP) = rowsum(dO * O)", {{{"", "delta"}}},
          {"delta = (P * dP).sum(-1, keepdims=True)"}},
      {"softmax's Jacobian", "J", "one row: diag(p) - p p^T",
          {{{"J of row \"I\" of head 0: weights by scores", "J", plain}}},
          {"J = np.diag(P[0, 0]) - np.outer(P[0, 0], P[0, 0])"}},
      {"dS           [H, L, L]", "dS", "J dP for each row = P * (dP - delta)", {{{"", "dS"}}},
          {"dS = P * (dP - delta)"}},
      {"dQ, dK       [H, L, d]", "dQ", "S = Q K^T / sqrt(d)",
          {{{"dQ = dS K / sqrt(d)", "dQ"}}, {{"dK = dS^T Q / sqrt(d)", "dK"}}},
          {"dQ = dS @ K / np.sqrt(2)", "dK = dS.swapaxes(1, 2) @ Q / np.sqrt(2)"}},
      {"projections  [D, D]", "dW_q", "q = x W_q^T: dW_q = dq^T x, and so on",
          {{{"dW_q", "dW_q", plain}, {"dW_k", "dW_k", plain}}, {{"dW_v", "dW_v", plain}}},
          {"dW_q = joined(dQ).T @ x", "dW_k = joined(dK).T @ x", "dW_v = joined(dV).T @ x"}},
      {"dx           [L, D]", "dx", "dq W_q + dk W_k + dv W_v", {{{"dx", "dx"}}},
          {"dx = joined(dQ) @ W_q + joined(dK) @ W_k + joined(dV) @ W_v"}}};
  Lines forward{"import numpy as np"};
  for (const char* name : {"x", "W_q", "W_k", "W_v", "W_o"})
    forward.push_back(std::string(name) + " = " + numpy_array(layer[name]));
  for (const char* line :
      {"heads = lambda a: a.reshape(3, 2, 2).swapaxes(0, 1)", "joined = lambda a: a.swapaxes(0, 1).reshape(3, 4)",
          "Q, K, V = heads(x @ W_q.T), heads(x @ W_k.T), heads(x @ W_v.T)",
          "P = np.exp(Q @ K.swapaxes(1, 2) / np.sqrt(2))", "P = P / P.sum(-1, keepdims=True)", "O = P @ V",
          "out = joined(O) @ W_o.T"}) {
    forward.emplace_back(line);
  }
  back.steps.insert(back.steps.begin(), {"the forward pass", "", "", {}, forward});

  // numbers below 16, sums of at most 24
  constexpr double kRounding = 24 * 16 * std::numeric_limits<double>::epsilon();
  const double rows_of_ds = largest(sum(ds, -1)), deltas_apart = largest(delta - sum(d_o * layer["attended"], -1));
  const double jacobian_apart = largest(matmul(first_row(dp), jacobian) - first_row(ds));
  const auto model = layer_of(layer);
  nn::Saved saved;
  model->forward(to_floats(x), {.context = &context}, &saved);
  Agreement agreement;
  agreement.add(any_tensor(model->backward(to_floats(dout), saved, context)), dx);
  for (const auto& [name, gradient] : {std::pair("query_proj.weight", "dW_q"), {"key_proj.weight", "dW_k"},
           {"value_proj.weight", "dW_v"}, {"output_proj.weight", "dW_o"}}) {
    agreement.add(model->gradients().at(name), back[gradient]);
  }
  back.claims = {{"Each row of dS adds up to 0: softmax does not change when a number is added to all scores of a row.",
                     rows_of_ds <= kRounding, "largest distance from 0: " + small_text(rows_of_ds)},
      {"delta is also the row sum of dO times O, so P need not be kept for it.", deltas_apart <= kRounding,
          small_text(deltas_apart) + " apart"},
      {"The Jacobian times dP gives dS; P * (dP - delta) is the same without an L x L matrix for each row.",
          jacobian_apart <= kRounding, small_text(jacobian_apart) + " apart"},
      agreement.claim("The layer's own backward pass gives the same gradients of x and of all four projections.")};
  return back;
}

}  // namespace qkv::cli
