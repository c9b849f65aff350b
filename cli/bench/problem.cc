#include "bench/problem.h"

#include <fmt/format.h>

namespace qkv::cli {
namespace {

AttentionOptions options_of(const AttentionShape& s) {
  AttentionOptions options;
  if (s.causal) options.mask = Mask::causal(s.q_len == s.kv_len ? Align::kSquare : Align::kBottomRight);
  if (s.extra == Extra::kWindow) options.mask = Mask::sliding(128);
  if (s.extra == Extra::kDropout) options.dropout = {.p = 0.1, .seed = 17, .training = true};
  if (s.extra == Extra::kKeyLengths) {
    std::vector<Index> lengths;
    for (Index b = 0; b < s.batch; ++b) lengths.push_back(s.kv_len * (b + 1) / s.batch);
    options.mask = Mask::key_lengths(lengths);
  }
  return options;
}

}  // namespace

std::string AttentionShape::text() const {
  std::string text = fmt::format("B{} H{}", batch, num_heads);
  if (kv_heads() != num_heads) text += fmt::format("/{}", kv_heads());
  text += q_len == kv_len ? fmt::format(" S{}", q_len) : fmt::format(" Tq{} Tk{}", q_len, kv_len);
  return text + fmt::format(" D{}{}", head_dim, causal ? " causal" : "");
}

double AttentionShape::forward_flops() const {
  const double pairs = static_cast<double>(batch * num_heads * q_len) * static_cast<double>(kv_len);
  return 4 * pairs * static_cast<double>(head_dim) * (causal && q_len == kv_len ? 0.5 : 1);
}

template <class T> AttentionProblem<T>::AttentionProblem(const AttentionShape& s, bool gradients, std::size_t copies)
    : shape(s), options(options_of(s)) {
  Random random(17);
  const std::vector<Index> q_sizes{s.batch, s.num_heads, s.q_len, s.head_dim},
      k_sizes{s.batch, s.kv_heads(), s.kv_len, s.head_dim}, bias_sizes{1, s.num_heads, s.q_len, s.kv_len};
  q = uniform_tensor<T>(random, q_sizes), out = Tensor<T>(q_sizes), lse = Tensor<Sum>({s.batch, s.num_heads, s.q_len});
  keys.push_back(uniform_tensor<T>(random, k_sizes));
  values.push_back(uniform_tensor<T>(random, k_sizes));
  while (keys.size() < copies) {
    keys.push_back(keys[0].clone());
    values.push_back(values[0].clone());
  }
  if (s.extra == Extra::kBias) options.bias = bias = uniform_tensor<Sum>(random, bias_sizes);
  if (!gradients) return;
  dout = uniform_tensor<T>(random, q_sizes), dq = Tensor<T>(q_sizes), dk = Tensor<T>(k_sizes), dv = Tensor<T>(k_sizes);
  if (s.extra == Extra::kBias) dbias = Tensor<Sum>(bias_sizes);
}

template <class T> void AttentionProblem<T>::forward(Context& context) {
  turn = (turn + 1) % keys.size();
  attention_forward(q, k(), v(), {.out = out, .lse = lse}, options, context);
}

template <class T> void AttentionProblem<T>::backward(Context& context) {
  AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
  if (dbias.count() > 0) gradients.dbias = dbias;
  attention_backward(q, k(), v(), out, lse, dout, gradients, options, context);
}

std::string kernel_text(const AttentionPlan& plan) {
  std::string text =
      fmt::format("{}, {}, {} queries x {} keys", plan.algorithm, isa_name(plan.isa), plan.query_tile, plan.key_tile);
  for (const std::string& reason : plan.skipped) text += "; not " + reason;
  return text;
}

template struct AttentionProblem<float>;
template struct AttentionProblem<double>;
template struct AttentionProblem<BFloat16>;
template struct AttentionProblem<Float16>;

}  // namespace qkv::cli
