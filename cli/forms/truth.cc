#include "forms/truth.h"

namespace qkv::cli {
namespace {

std::vector<float> joined(const StateDict& state, std::initializer_list<const char*> names) {
  std::vector<float> all;
  for (const char* name : names) {
    if (!state.contains(name)) return {};
    const Tensor<float> part = to_f32(state.at(name));
    all.insert(all.end(), part.span().begin(), part.span().end());
  }
  return all;
}

}  // namespace

TextbookLayer textbook(const StateDict& state, Index num_heads, bool causal) {
  return {joined(state, {"query_proj.weight", "key_proj.weight", "value_proj.weight"}),
      joined(state, {"query_proj.bias", "key_proj.bias", "value_proj.bias"}), joined(state, {"output_proj.weight"}),
      joined(state, {"output_proj.bias"}), num_heads, causal};
}

/// A of a layer: W_out and the values with every term positive, the weights' share from |q| and |k| as they are.
Truth<double> truth_of(const Tensor<float>& x, const TextbookLayer& layer, Index batch) {
  const Tensor<double> wide = converted<double>(x);
  Tensor<double> weights;
  Tensor<double> exact = textbook_forward(wide, layer, batch, &weights);
  Tensor<double> size = textbook_linear(wide, layer.in_weight, layer.in_bias, kSame);  // [B*T, 3E]
  for (double& value : size.span()) value = std::abs(value);
  const Tensor<double> positive = textbook_linear(wide, layer.in_weight, layer.in_bias, kPositive);
  const auto heads = [&](const Tensor<double>& rows, int part) {
    return part_as_heads(rows, batch, layer.num_heads, part);
  };
  Tensor<double> a =
      heads_to_rows<double>(attention_magnitude(weights, heads(size, 0), heads(size, 1), heads(positive, 2)));
  if (!layer.out_weight.empty()) a = textbook_linear(a, layer.out_weight, layer.out_bias, kPositive);
  return {std::move(exact), textbook_forward(x, layer, batch), a};
}

}  // namespace qkv::cli
