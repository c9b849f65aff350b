// The backward pass of explain's layer, each step by its formula, and the same steps in NumPy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "explain/explain.h"
#include "judge/tasks/derivative.h"
#include "judge/tasks/steps.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

using judge::Array;
using judge::Number;

Array array_of(const Tensor<float>& x) { return judge::to_array(any_tensor(x)); }
/// [1, rows...] without the first axis.
Tensor<double> tensor_of(const Array& x) {
  Tensor<double> tensor = to_f64(to_tensor(x));
  if (x.rank() > 2) tensor.reshape({x.shape.begin() + 1, x.shape.end()});
  return tensor;
}

/// diag(p) - p p^T of a row of weights [1, n]: what a change of a score does to each weight.
Array jacobian_of(const Array& p) {
  Array jacobian = matmul(transpose(p), p) * Number(-1);
  for (Index j = 0; j < p.count(); ++j) jacobian[j * p.count() + j] = p[j] + jacobian[j * p.count() + j];
  return jacobian;
}

double largest(const Array& x) {
  double found = 0;
  for (const Number& one : x.data) found = std::max(found, std::abs(one.value));
  return found;
}

double largest_difference(const Tensor<double>& a, const Tensor<double>& b) {
  double found = 0;
  for (Index n = 0; n < a.count(); ++n) found = std::max(found, std::abs(a.data()[n] - b.data()[n]));
  return found;
}

/// Every number of the example is below 16 and sums have at most 24 terms.
template <class T>
constexpr double kRounding = 24 * 16 * static_cast<double>(std::numeric_limits<T>::epsilon());

/// The layer's own gradients, in f32, held against those of the loops.
Claim layer_agrees(const LayerWalk& walk, const BackwardWalk& back, Context& context) {
  const auto layer = nn::load_layer("mha", parameters_of(walk), {.num_heads = walk.num_heads});
  nn::Saved saved;
  layer->forward(walk.x, {.context = &context}, &saved);
  Tensor<float> dout(walk.out.sizes());
  std::ranges::copy(back.dout.span(), dout.data());
  const Tensor<float> dx = layer->backward(dout, saved, context);
  double apart = largest_difference(to_f64(any_tensor(dx)), back.dx);
  const StateDict gradients = layer->gradients();
  for (const auto& [name, of_loops] : {std::pair("query_proj.weight", &back.dw_q),
                                       {"key_proj.weight", &back.dw_k},
                                       {"value_proj.weight", &back.dw_v},
                                       {"output_proj.weight", &back.dw_o}}) {
    apart = std::max(apart, largest_difference(to_f64(gradients.at(name)), *of_loops));
  }
  return {"The layer's own backward pass gives the same gradients of x and of all four projections.", apart <= kRounding<float>,
          small_text(apart) + " apart"};
}

/// "[[1, 0, 2, 1], [0, 1, 1, 0]]": whole numbers.
std::string numpy_array(const Array& x) {
  std::string text;
  for (Index n = 0; n < x.count(); ++n) {
    const bool first = n % x.size(-1) == 0;
    text += fmt::format("{}{:.0f}", n == 0 ? "[" : first ? "], [" : ", ", x[n].value);
  }
  return "np.array([" + text + "]])";
}

}  // namespace

BackwardWalk walk_backward(const LayerWalk& walk, Context& context) {
  const Index num_heads = walk.num_heads, length = walk.x.size(1);
  const Array x = array_of(walk.x), w_q = array_of(walk.w_q), w_k = array_of(walk.w_k), w_v = array_of(walk.w_v),
              w_o = array_of(walk.w_o);
  const auto heads = [&](const Array& rows) { return judge::split_heads(rows, num_heads); };  // [1, L, E] -> [1, H, L, d]
  const Array q = heads(matmul(x, transpose(w_q))), k = heads(matmul(x, transpose(w_k))), v = heads(matmul(x, transpose(w_v)));
  const Number scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Array p = softmax(matmul(q, transpose(k)) * scale), o = matmul(p, v);
  Array dout(x.shape);
  std::ranges::copy(std::array{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1}, dout.data.begin());
  const Array d_o = heads(matmul(dout, w_o));  // out = joined W_o^T
  const Array dp = matmul(d_o, transpose(v));  // o = p v
  const Array delta = sum(p * dp, -1), ds = p * (dp - delta);
  const Array dq = matmul(ds, k) * scale, dk = matmul(transpose(ds), q) * scale, dv = matmul(transpose(p), d_o);
  const Array rows_q = merge_heads(dq), rows_k = merge_heads(dk), rows_v = merge_heads(dv);
  const auto first_row = [&](const Array& of) { return slice(reshape(of, {num_heads * length, length}), 0, 0, 1); };
  const Array jacobian = jacobian_of(first_row(p));
  BackwardWalk back{.dout = tensor_of(dout),
                    .d_heads = tensor_of(d_o),
                    .weights = tensor_of(p),
                    .dp = tensor_of(dp),
                    .ds = tensor_of(ds),
                    .delta = tensor_of(delta),
                    .jacobian = tensor_of(jacobian),
                    .dq = tensor_of(dq),
                    .dk = tensor_of(dk),
                    .dv = tensor_of(dv),
                    .dw_q = tensor_of(weight_gradient(rows_q, x)),  // q = x W_q^T
                    .dw_k = tensor_of(weight_gradient(rows_k, x)),
                    .dw_v = tensor_of(weight_gradient(rows_v, x)),
                    .dw_o = tensor_of(weight_gradient(dout, merge_heads(o))),
                    .dx = tensor_of(matmul(rows_q, w_q) + matmul(rows_k, w_k) + matmul(rows_v, w_v)),
                    .numpy = {},
                    .claims = {}};
  const double rows_of_ds = largest(sum(ds, -1)), deltas_apart = largest(delta - sum(d_o * o, -1));
  const double jacobian_apart = largest(matmul(first_row(dp), jacobian) - first_row(ds));
  back.claims = {{"Each row of dS adds up to 0: softmax does not change when a number is added to all scores of a row.",
                  rows_of_ds <= kRounding<double>, "largest distance from 0: " + small_text(rows_of_ds)},
                 {"delta is also the row sum of dO times O, so P need not be kept for it.", deltas_apart <= kRounding<double>,
                  small_text(deltas_apart) + " apart"},
                 {"The Jacobian times dP gives dS; P * (dP - delta) is the same without an L x L matrix for each row.",
                  jacobian_apart <= kRounding<double>, small_text(jacobian_apart) + " apart"},
                 layer_agrees(walk, back, context)};
  back.numpy = {
      {"import numpy as np", "x = " + numpy_array(x), "W_q = " + numpy_array(w_q), "W_k = " + numpy_array(w_k),
       "W_v = " + numpy_array(w_v), "W_o = " + numpy_array(w_o), "heads = lambda a: a.reshape(3, 2, 2).swapaxes(0, 1)",
       "joined = lambda a: a.swapaxes(0, 1).reshape(3, 4)", "Q, K, V = heads(x @ W_q.T), heads(x @ W_k.T), heads(x @ W_v.T)",
       "P = np.exp(Q @ K.swapaxes(1, 2) / np.sqrt(2))", "P = P / P.sum(-1, keepdims=True)", "O = P @ V",
       "out = joined(O) @ W_o.T"},
      {"dout = " + numpy_array(dout)},
      {"dW_o = dout.T @ joined(O)", "dO = heads(dout @ W_o)"},
      {"dV = P.swapaxes(1, 2) @ dO"},
      {"dP = dO @ V.swapaxes(1, 2)"},
      {"delta = (P * dP).sum(-1, keepdims=True)"},
      {"J = np.diag(P[0, 0]) - np.outer(P[0, 0], P[0, 0])"},
      {"dS = P * (dP - delta)"},
      {"dQ = dS @ K / np.sqrt(2)", "dK = dS.swapaxes(1, 2) @ Q / np.sqrt(2)"},
      {"dW_q = joined(dQ).T @ x", "dW_k = joined(dK).T @ x", "dW_v = joined(dV).T @ x"},
      {"dx = joined(dQ) @ W_q + joined(dK) @ W_k + joined(dV) @ W_v"}};
  return back;
}

}  // namespace qkv::cli
