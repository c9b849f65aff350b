// Causal attention without a layer: attention_forward and attention_backward, the gradient checked by finite
// differences.
#include "example.h"
#include "qkv/qkv.h"

int main() {
  const qkv::Index batch = 2, heads = 3, length = 7, width = 5;
  const auto make = [&](unsigned seed) {  // [B, H, T, D] in f64
    const qkv::Tensor<float> numbers = random_tensor({batch, heads, length, width}, seed);
    qkv::Tensor<double> tensor(numbers.sizes());
    std::copy(numbers.span().begin(), numbers.span().end(), tensor.span().begin());
    return tensor;
  };
  qkv::Tensor<double> q = make(1);
  const qkv::Tensor<double> k = make(2), v = make(3), dout = make(4);
  qkv::Tensor<double> out(q.sizes()), lse({batch, heads, length}), dq(q.sizes()), dk(q.sizes()), dv(q.sizes());
  const qkv::AttentionOptions options{.mask = qkv::Mask::causal()};
  qkv::attention_forward(q, k, v, {.out = out, .lse = lse}, options);
  qkv::attention_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv}, options);
  std::printf("out[0,0,0,0] %.6f is v[0,0,0,0] %.6f: the first token sees itself\n", out.data()[0], v.data()[0]);

  const auto loss = [&] {  // sum(out * dout)
    qkv::attention_forward(q, k, v, {.out = out, .lse = lse}, options);
    double sum = 0;
    for (qkv::Index n = 0; n < out.count(); ++n) sum += out.data()[n] * dout.data()[n];
    return sum;
  };
  const bool first = out.data()[0] == v.data()[0];
  const qkv::Index at = 3 * width + 1;  // an element of q[0, 0, 3]
  const double step = 0x1p-16, before = q.data()[at];
  q.data()[at] = before + step;
  const double above = loss();
  q.data()[at] = before - step;
  const double difference = (above - loss()) / (2 * step);
  std::printf("dq %.9f, by differences %.9f\n", dq.data()[at], difference);
  return verdict(first && std::abs(dq.data()[at] - difference) < 1e-8, "backward is the derivative of forward");
}
