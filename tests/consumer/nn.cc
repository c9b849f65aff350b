// Uses the installed layers: y = x W^T + b of one row of zeros is the bias.
#include <qkv/nn/linear.h>

#include <cstdio>

int main() {
  qkv::nn::Linear linear({.in_features = 4, .out_features = 3, .seed = 7});
  qkv::Tensor<float> x({1, 4}), y({1, 3});
  linear.forward(x, y);
  const qkv::Tensor<float> bias = qkv::to_f32(linear.state_dict().at("bias"));
  bool equal = true;
  for (qkv::Index i = 0; i < 3; ++i) equal = equal && y.data()[i] == bias.data()[i];
  std::printf("linear layer of zeros gives its bias: %s\n", equal ? "yes" : "no");
  return equal ? 0 : 1;
}
