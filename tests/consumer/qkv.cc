// Uses the installed core: with every value equal, attention gives that value back; errors arrive as their own types.
#include <qkv/qkv.h>

#include <cmath>
#include <cstdio>

int main() {
  qkv::Tensor<float> q({1, 2, 5, 3}), k({1, 2, 5, 3}), v({1, 2, 5, 3}), out({1, 2, 5, 3});  // [B, H, T, D]
  for (qkv::Index i = 0; i < q.count(); ++i) {
    q.data()[i] = std::sin(static_cast<float>(i));
    k.data()[i] = std::cos(static_cast<float>(i));
    v.data()[i] = 1;
  }
  qkv::attention_forward(q, k, v, {.out = out}, {.mask = qkv::Mask::causal()});
  float worst = 0;
  for (qkv::Index i = 0; i < out.count(); ++i) {
    const float error = std::fabs(out.data()[i] - 1);
    if (!(error <= worst)) worst = error;  // NaN too
  }

  bool refused = false;
  try {
    qkv::Tensor<float> narrow({1, 2, 5, 2});
    qkv::attention_forward(q, narrow, v, {.out = out});
  } catch (const qkv::ShapeError&) {
    refused = true;
  }
  std::printf("qkv %s: largest error %g, wrong shape refused: %s\n", QKV_VERSION, static_cast<double>(worst),
      refused ? "yes" : "no");
  return worst < 1e-6F && refused ? 0 : 1;
}
