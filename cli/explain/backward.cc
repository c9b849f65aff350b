// The backward pass of explain's layer, each step by its formula in plain loops, and the same steps in NumPy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "explain/explain.h"
#include "qkv/nn/nn.h"

namespace qkv::cli {
namespace {

using Matrix = Tensor<double>;  // [rows, columns]

Matrix matrix_of(const Tensor<float>& x) {
  const Index columns = x.size(x.rank() - 1);
  Matrix copy({x.count() / columns, columns});
  std::ranges::copy(x.span(), copy.data());
  return copy;
}

Matrix transposed(const View<const double, 2>& a) {
  Matrix t({a.size(1), a.size(0)});
  for (Index i = 0; i < a.size(0); ++i) {
    for (Index j = 0; j < a.size(1); ++j) t.view<2>()(j, i) = a(i, j);
  }
  return t;
}

/// a b
Matrix product(const View<const double, 2>& a, const View<const double, 2>& b) {
  Matrix c({a.size(0), b.size(1)});
  for (Index i = 0; i < a.size(0); ++i) {
    for (Index k = 0; k < a.size(1); ++k) {
      for (Index j = 0; j < b.size(1); ++j) c.view<2>()(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}

Matrix sum_of(const Matrix& a, const Matrix& b) {
  Matrix c(a.sizes());
  std::ranges::transform(a.span(), b.span(), c.data(), std::plus<>());
  return c;
}

/// One head of [H, rows, columns].
View<const double, 2> head_of(const Tensor<double>& x, Index h) {
  return {x.data() + h * x.size(1) * x.size(2), {x.size(1), x.size(2)}};
}
void set_head(Tensor<double>& x, Index h, const Matrix& value) {
  std::ranges::copy(value.span(), x.data() + h * value.count());
}

/// [L, E] -> [H, L, d]
Tensor<double> heads(const Matrix& x, Index num_heads) {
  const Index length = x.size(0), depth = x.size(1) / num_heads;
  Tensor<double> cut({num_heads, length, depth});
  for (Index h = 0; h < num_heads; ++h) {
    for (Index i = 0; i < length; ++i) std::copy_n(&x.view<2>()(i, h * depth), depth, &cut.view<3>()(h, i, 0));
  }
  return cut;
}
/// [H, L, d] -> [L, E]
Matrix joined(const Tensor<double>& x) {
  const Index num_heads = x.size(0), length = x.size(1), depth = x.size(2);
  Matrix whole({length, num_heads * depth});
  for (Index h = 0; h < num_heads; ++h) {
    for (Index i = 0; i < length; ++i) std::copy_n(&x.view<3>()(h, i, 0), depth, &whole.view<2>()(i, h * depth));
  }
  return whole;
}

/// softmax(scale q k^T), [L, L]
Matrix softmax_of(const View<const double, 2>& q, const View<const double, 2>& k, double scale) {
  Matrix p = product(q, transposed(k));
  const View<double, 2> w = p;
  for (Index i = 0; i < w.size(0); ++i) {
    double sum = 0;
    for (Index j = 0; j < w.size(1); ++j) sum += w(i, j) = std::exp(scale * w(i, j));
    for (Index j = 0; j < w.size(1); ++j) w(i, j) /= sum;
  }
  return p;
}

/// diag(p) - p p^T of one row of weights: what a change of a score does to each weight.
Matrix jacobian_of(const View<const double, 2>& weights, Index row) {
  const Index n = weights.size(1);
  Matrix jacobian({n, n});
  for (Index j = 0; j < n; ++j) {
    for (Index k = 0; k < n; ++k) {
      jacobian.view<2>()(j, k) = (j == k ? weights(row, j) : 0) - weights(row, j) * weights(row, k);
    }
  }
  return jacobian;
}

double largest_difference(const Tensor<double>& a, const Tensor<double>& b) {
  double largest = 0;
  for (Index n = 0; n < a.count(); ++n) largest = std::max(largest, std::abs(a.data()[n] - b.data()[n]));
  return largest;
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
  double apart = largest_difference(matrix_of(dx), back.dx);
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
std::string numpy_array(const Matrix& x) {
  std::string text;
  for (Index i = 0; i < x.size(0); ++i) {
    std::string row;
    for (Index j = 0; j < x.size(1); ++j) row += fmt::format("{}{:.0f}", j == 0 ? "" : ", ", x.view<2>()(i, j));
    text += fmt::format("{}[{}]", i == 0 ? "" : ", ", row);
  }
  return "np.array([" + text + "])";
}

}  // namespace

BackwardWalk walk_backward(const LayerWalk& walk, Context& context) {
  BackwardWalk back;
  const Index num_heads = walk.num_heads, length = walk.x.size(1), embed = walk.x.size(2), depth = embed / num_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(depth));
  const Matrix x = matrix_of(walk.x), w_q = matrix_of(walk.w_q), w_k = matrix_of(walk.w_k), w_v = matrix_of(walk.w_v),
               w_o = matrix_of(walk.w_o);
  const Tensor<double> q = heads(product(x, transposed(w_q)), num_heads), k = heads(product(x, transposed(w_k)), num_heads),
                       v = heads(product(x, transposed(w_v)), num_heads);
  back.dout = Matrix({length, embed});
  std::ranges::copy(std::array{1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0}, back.dout.data());
  const Matrix dattended = product(back.dout, w_o);  // out = joined W_o^T
  back.d_heads = heads(dattended, num_heads);
  const std::vector<Index> of_heads = back.d_heads.sizes(), of_scores = {num_heads, length, length};
  Tensor<double> attended(of_heads);
  back.weights = Tensor<double>(of_scores);
  back.dp = Tensor<double>(of_scores);
  back.ds = Tensor<double>(of_scores);
  back.delta = Tensor<double>({num_heads, length, 1});
  back.dq = Tensor<double>(of_heads);
  back.dk = Tensor<double>(of_heads);
  back.dv = Tensor<double>(of_heads);
  double rows_of_ds = 0, deltas_apart = 0;
  for (Index h = 0; h < num_heads; ++h) {
    const View<const double, 2> d_o = head_of(back.d_heads, h);
    const Matrix p = softmax_of(head_of(q, h), head_of(k, h), scale);
    const Matrix o = product(p, head_of(v, h));
    const Matrix dp = product(d_o, transposed(head_of(v, h)));  // o = p v
    Matrix ds(p.sizes());
    for (Index i = 0; i < length; ++i) {
      double delta = 0, of_output = 0, sum = 0;
      for (Index j = 0; j < length; ++j) delta += p.view<2>()(i, j) * dp.view<2>()(i, j);
      for (Index n = 0; n < depth; ++n) of_output += o.view<2>()(i, n) * d_o(i, n);
      for (Index j = 0; j < length; ++j) sum += ds.view<2>()(i, j) = p.view<2>()(i, j) * (dp.view<2>()(i, j) - delta);
      back.delta.view<3>()(h, i, 0) = delta;
      deltas_apart = std::max(deltas_apart, std::abs(delta - of_output));
      rows_of_ds = std::max(rows_of_ds, std::abs(sum));
    }
    Matrix dq = product(ds, head_of(k, h)), dk = product(transposed(ds), head_of(q, h));
    for (Matrix* each : {&dq, &dk}) {
      for (double& value : each->span()) value *= scale;  // s = scale q k^T
    }
    set_head(attended, h, o);
    set_head(back.weights, h, p);
    set_head(back.dp, h, dp);
    set_head(back.ds, h, ds);
    set_head(back.dq, h, dq);
    set_head(back.dk, h, dk);
    set_head(back.dv, h, product(transposed(p), d_o));
  }
  back.jacobian = jacobian_of(head_of(back.weights, 0), 0);
  const Matrix dq = joined(back.dq), dk = joined(back.dk), dv = joined(back.dv);
  back.dw_o = product(transposed(back.dout), joined(attended));
  back.dw_q = product(transposed(dq), x);  // q = x W_q^T
  back.dw_k = product(transposed(dk), x);
  back.dw_v = product(transposed(dv), x);
  back.dx = sum_of(sum_of(product(dq, w_q), product(dk, w_k)), product(dv, w_v));

  const Matrix first_dp = transposed(View<const double, 2>(back.dp.data(), {1, length}));
  const Matrix by_jacobian = product(back.jacobian, first_dp);
  double jacobian_apart = 0;
  for (Index j = 0; j < length; ++j) {
    jacobian_apart = std::max(jacobian_apart, std::abs(by_jacobian.data()[j] - back.ds.data()[j]));
  }
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
      {"dout = " + numpy_array(back.dout)},
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
