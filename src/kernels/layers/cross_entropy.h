// Softmax and cross-entropy of rows of logits, with their gradient. As in attention, a block of rows is transposed so
// that each SIMD lane holds one row: maximum and sum need no horizontal step.
#pragma once

#include <numbers>

#include "core/maths.h"
#include "kernels/layers/params.h"
#include "simd/exp2.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

constexpr Index kClassBlock = 128;  // columns of logits transposed at once: 8 KiB of stack on AVX-512

/// One block of rows, one in each lane.
struct LogitRows {
  using V = Simd<float>::V;
  static constexpr Index kLanes = Simd<float>::kLanes;

  const float* logits;
  Index stride, count, columns;
  float* panel;     // [columns of a block][lanes]
  Index held = -1;  // first column of the block in the panel

  /// The panel of columns [begin, begin + result).
  Index turn(Index begin) {
    const Index width = smaller(kClassBlock, columns - begin);
    if (held != begin) pack_transposed<float>(logits + begin, stride, count, width, 1.0f, panel, kLanes);
    held = begin;
    return width;
  }
  V largest() {
    V result = splat<float>(-kInf<float>);
    for (Index begin = 0; begin < columns; begin += kClassBlock) {
      const Index width = turn(begin);
      for (Index v = 0; v < width; ++v) result = max_or_second(result, load<float>(panel + v * kLanes));
    }
    return result;
  }
  /// exp(x - largest) instead of the panel's logits; the sum over them.
  V exponentials(Index begin, V top) {
    const Index width = turn(begin);
    held = -1;
    V sum{};
    for (Index v = 0; v < width; ++v) {
      float* target = panel + v * kLanes;
      const V e = exp2<float>((load<float>(target) - top) * std::numbers::log2e_v<float>);
      store<float>(target, e);
      sum += e;
    }
    return sum;
  }
};

/// gradient[m, :] = share * (softmax(logits[m, :]) - onehot(targets[m])), 0 where the target is negative. Returns the
/// sum of log(sum exp(logits[m, :])) - logits[m, target] over the other rows. A row with NaN or +inf gives NaN.
inline double cross_entropy(const CrossEntropyRows& t) {
  using V = Simd<float>::V;
  constexpr Index n = Simd<float>::kLanes;
  alignas(64) float panel[kClassBlock * n];
  double loss = 0, product = 1;  // of up to 32 sums, each at most `columns`: one logarithm for all
  int factors = 0;
  for (Index m0 = 0; m0 < t.rows; m0 += n) {
    LogitRows rows{t.logits + m0 * t.logits_stride, t.logits_stride, smaller(n, t.rows - m0), t.columns, panel};
    const V top = rows.largest();
    V sum{};
    const bool one_block = t.columns <= kClassBlock;
    for (Index begin = 0; begin < t.columns; begin += kClassBlock) sum += rows.exponentials(begin, top);
    alignas(64) float tops[n], sums[n], weights[n];
    store<float>(tops, top);
    store<float>(sums, sum);
    store<float>(weights, splat<float>(t.share) / sum);
    for (Index begin = 0; begin < t.columns; begin += kClassBlock) {
      if (!one_block) rows.exponentials(begin, top);
      unpack_transposed<float>(rows.panel, n, rows.count, smaller(kClassBlock, t.columns - begin), weights,
          t.gradient + m0 * t.gradient_stride + begin, t.gradient_stride);
    }
    for (Index r = 0; r < rows.count; ++r) {
      const Index target = t.targets[m0 + r];
      float* gradient = t.gradient + (m0 + r) * t.gradient_stride;
      if (target < 0) {
        for (Index v = 0; v < t.columns; ++v) gradient[v] = 0.0f;
        continue;
      }
      gradient[target] -= t.share;
      loss += static_cast<double>(tops[r]) - static_cast<double>(rows.logits[r * t.logits_stride + target]);
      product *= static_cast<double>(sums[r]);
      if (++factors == 32) {
        loss += maths::log(product);
        product = 1;
        factors = 0;
      }
    }
  }
  return loss + maths::log(product);
}

}  // namespace
}  // namespace qkv
