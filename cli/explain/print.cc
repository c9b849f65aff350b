#include "explain/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "support/text.h"

namespace qkv::cli {
namespace {

/// Whole numbers without decimals, others with two; no "-0".
std::string number(double value, int width, int decimals) {
  const double rounded = std::round(value * 100) / 100;
  return fmt::format("{:>{}.{}f}", rounded == 0 ? 0 : rounded, width, decimals);
}

Tensor<float> narrow(const Tensor<double>& x, std::vector<Index> sizes) {
  Tensor<float> copy(std::move(sizes));
  std::ranges::transform(x.span(), copy.data(), [](double value) { return static_cast<float>(value); });
  return copy;
}

/// Head h of [1, H, L, n].
Lines head(const Lines& labels, const View<const float, 4>& x, Index h, int width) {
  const View<const float, 2> one(x.data() + h * x.stride(1), {x.size(2), x.size(3)}, {x.stride(2), x.stride(3)});
  return matrix(fmt::format("head {}", h), labels, one, width);
}

void print_numpy(const Lines& code) {
  for (const std::string& line : code) print_line(faint("  >>> " + line));
}

}  // namespace

Lines matrix(const std::string& title, const Lines& labels, const View<const float, 2>& rows, int width) {
  Lines lines = {title};
  std::size_t label_width = 0;
  for (const std::string& label : labels) label_width = std::max(label_width, label.size());
  int decimals = 0;
  for (Index i = 0; i < rows.size(0); ++i) {
    for (Index j = 0; j < rows.size(1); ++j) decimals = rows(i, j) == std::floor(rows(i, j)) ? decimals : 2;
  }
  for (Index i = 0; i < rows.size(0); ++i) {
    std::string line = fmt::format("  {:<{}} ", labels.empty() ? "" : labels[static_cast<std::size_t>(i)], label_width);
    for (Index j = 0; j < rows.size(1); ++j) line += number(rows(i, j), width, decimals);
    lines.push_back(std::move(line));
  }
  return lines;
}

Lines matrix(const std::string& title, const Lines& labels, const Tensor<float>& x, int width) {
  return matrix(title, labels, View<const float, 2>(x.data(), {x.size(1), x.size(2)}), width);
}

void print_heads(const Lines& labels, const View<const float, 4>& x, int width) {
  std::vector<Lines> columns;
  for (Index h = 0; h < x.size(1); ++h) columns.push_back(head(labels, x, h, width));
  print(beside(columns, 6));
}

Lines matrix(const std::string& title, const Lines& labels, const Tensor<double>& x, int width) {
  const Tensor<float> shown = narrow(x, x.sizes());
  return matrix(title, labels, shown.view<2>(), width);
}

void print_heads(const Lines& labels, const Tensor<double>& x, int width) {
  const Tensor<float> shown = narrow(x, {1, x.size(0), x.size(1), x.size(2)});
  print_heads(labels, shown.view<4>(), width);
}

void print_step(int step, const std::string& name, const std::string& shape, const std::string& what) {
  print_line();
  print_line(bold(fmt::format("{}  {:<25} {:<13}", step, name, shape)) + faint(what));
}

void print_backward(const LayerWalk& walk, const BackwardWalk& back) {
  const Lines& tokens = walk.tokens;
  std::size_t next = 0;
  const auto code = [&] { print_numpy(back.numpy[next++]); };
  print_line(bold("Back through the multi-head layer, step by step"));
  print_line(wrapped(
      "The layer of qkv explain: L = 3 tokens, H = 2 heads of d = 2. dY stands for the gradient of a loss with respect to "
      "Y. Each step undoes one step of the forward pass, last first. After >>> the same in NumPy: paste all of these "
      "lines in their order."));
  print_line();
  print_line(faint("the forward pass"));
  code();
  print_step(1, "dout         [L, D]", back.dout.shape(), "what arrives at the output: given");
  print(beside({matrix("dout", tokens, back.dout, 3)}));
  code();
  print_step(2, "dW_o, dO", back.d_heads.shape(), "out = joined W_o^T");
  print(beside({matrix("dW_o = dout^T joined", {}, back.dw_o, 6)}));
  print_line(faint("  dO = dout W_o, cut into heads"));
  print_heads(tokens, back.d_heads, 6);
  code();
  print_step(3, "dV           [H, L, d]", back.dv.shape(), "O = P V: dV = P^T dO");
  print_heads(tokens, back.dv, 6);
  code();
  print_step(4, "dP           [H, L, L]", back.dp.shape(), "O = P V: dP = dO V^T");
  print_heads(tokens, back.dp, 6);
  code();
  print_step(5, "delta        [H, L]", back.delta.shape(), "rowsum(P * dP) = rowsum(dO * O)");
  print_heads(tokens, back.delta, 6);
  code();
  print_step(6, "softmax's Jacobian", back.jacobian.shape(), "one row: diag(p) - p p^T");
  print_line(wrapped("Row \"" + tokens[0] + "\" of head 0: how each of its weights moves with each of its scores.", 2));
  print(beside({matrix("J", {}, back.jacobian, 6)}));
  code();
  print_step(7, "dS           [H, L, L]", back.ds.shape(), "J dP for each row = P * (dP - delta)");
  print_heads(tokens, back.ds, 6);
  code();
  print_step(8, "dQ, dK       [H, L, d]", back.dq.shape(), "S = Q K^T / sqrt(d)");
  print_line(faint("  dQ = dS K / sqrt(d)"));
  print_heads(tokens, back.dq, 6);
  print_line(faint("  dK = dS^T Q / sqrt(d)"));
  print_heads(tokens, back.dk, 6);
  code();
  print_step(9, "projections  [D, D]", back.dw_q.shape(), "q = x W_q^T: dW_q = dq^T x, and so on");
  print(beside({matrix("dW_q", {}, back.dw_q, 6), matrix("dW_k", {}, back.dw_k, 6)}));
  print(beside({matrix("dW_v", {}, back.dw_v, 6)}));
  code();
  print_step(10, "dx           [L, D]", back.dx.shape(), "dq W_q + dk W_k + dv W_v");
  print(beside({matrix("dx", tokens, back.dx, 6)}));
  code();
  print_line();
  print_claims(back.claims);
}

Json to_json(const BackwardWalk& back) {
  std::string numpy;
  for (const Lines& step : back.numpy) {
    for (const std::string& line : step) numpy += line + "\n";
  }
  return {
      {"dout", nested(back.dout)},     {"dO", nested(back.d_heads)},  {"P", nested(back.weights)},  {"dV", nested(back.dv)},
      {"dP", nested(back.dp)},         {"delta", nested(back.delta)}, {"J", nested(back.jacobian)}, {"dS", nested(back.ds)},
      {"dQ", nested(back.dq)},         {"dK", nested(back.dk)},       {"dW_q", nested(back.dw_q)},  {"dW_k", nested(back.dw_k)},
      {"dW_v", nested(back.dw_v)},     {"dW_o", nested(back.dw_o)},   {"dx", nested(back.dx)},      {"numpy", numpy},
      {"claims", to_json(back.claims)}};
}

}  // namespace qkv::cli
