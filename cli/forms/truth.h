// A layer as the textbook writes it, in any type, and how far from it a form in the next narrower type may be.
// x [B, T, E] -> x W_in^T + b_in -> attention of H heads -> W_out, b_out.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "qkv/state_dict.h"
#include "qkv/tensor.h"
#include "reference/attention.h"
#include "support/converted.h"

namespace qkv::cli {

/// Parameters of one form: W_in [3E, E], b_in [3E] or empty, W_out [E, E] or empty, b_out [E] or empty.
struct TextbookLayer {
  std::vector<float> in_weight, in_bias, out_weight, out_bias;
  Index num_heads = 1;
  bool causal = false;
};

/// Exact values, each with the largest distance that is right.
template <class Wide> struct Truth {
  Tensor<Wide> exact;
  std::vector<double> bounds;

  /// 2 x error(naive) + 4 eps A: `naive` is the same computation in T, `a` the computation with every term positive.
  template <class T> Truth(Tensor<Wide> values, const Tensor<T>& naive, const Tensor<double>& a)
      : exact(std::move(values)) {
    double naive_error = 0;
    for (Index n = 0; n < exact.count(); ++n) {
      naive_error =
          std::max(naive_error, static_cast<double>(std::abs(static_cast<Wide>(naive.data()[n]) - exact.data()[n])));
    }
    const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
    for (const double magnitude : a.span()) bounds.push_back(2 * naive_error + 4 * epsilon * magnitude);
  }
};

struct Distance {
  double largest = 0;
  double over_bound = 0;  ///< largest |a - b| / bound; NaN counts as infinitely far
};

/// Of two tensors with the same number of elements.
template <class A, class B>
Distance distance(const Tensor<A>& a, const Tensor<B>& b, const std::vector<double>& bounds) {
  Distance found;
  for (Index n = 0; n < a.count(); ++n) {
    const double apart =
        static_cast<double>(std::abs(static_cast<long double>(a.data()[n]) - static_cast<long double>(b.data()[n])));
    if (std::isnan(apart)) return {apart, std::numeric_limits<double>::infinity()};
    found.largest = std::max(found.largest, apart);
    const double bound = bounds[static_cast<std::size_t>(n)];
    if (apart > 0) found.over_bound = std::max(found.over_bound, apart / bound);
  }
  return found;
}

/// y[m, n] = sum_k x[m, k] W[n, k] + b[n]; every factor through `of`, which is the identity or the absolute value.
template <class T, class Of>
Tensor<T> textbook_linear(const Tensor<T>& x, const std::vector<float>& weight, const std::vector<float>& bias, Of of) {
  const Index rows = x.size(0), in = x.size(1), out = static_cast<Index>(weight.size()) / in;
  Tensor<T> y({rows, out});
  for (Index m = 0; m < rows; ++m) {
    for (Index n = 0; n < out; ++n) {
      T sum = bias.empty() ? T(0) : static_cast<T>(of(bias[static_cast<std::size_t>(n)]));
      for (Index k = 0; k < in; ++k) {
        sum += of(x.data()[m * in + k]) * static_cast<T>(of(weight[static_cast<std::size_t>(n * in + k)]));
      }
      y.data()[m * out + n] = sum;
    }
  }
  return y;
}

/// The third `part` (q, k or v) of projected [B*T, 3E] as heads [B, H, T, D].
template <class T> View<const T, 4> part_as_heads(const Tensor<T>& projected, Index batch, Index num_heads, int part) {
  const Index width = projected.size(1) / 3, length = projected.size(0) / batch;
  const View<const T, 3> rows(
      projected.data() + part * width, {batch, length, width}, {length * 3 * width, 3 * width, 1});
  return split_heads(rows, num_heads);
}

template <class T> reference::Options<T> textbook_options(bool causal) {
  reference::Options<T> options;
  if (causal) options.keep = [](Index, Index, Index i, Index j) { return j <= i; };
  return options;
}

/// A of attention: out[i] = sum_j w (1 + (S[i,j] + sum_j w S) / 4) |v[j]|, S = scale |q||k|, since rounding a score by
/// eps S moves its weight by that share. `weights` are exact; qa, ka, va [B, H, T, D] hold no sign.
template <class Wide> Tensor<double> attention_magnitude(
    const Tensor<Wide>& weights, View<const double, 4> qa, View<const double, 4> ka, View<const double, 4> va) {
  const View<const Wide, 4> w = weights;
  const Index length = qa.size(2), depth = qa.size(3);
  const double scale = 1 / std::sqrt(static_cast<double>(depth));
  Tensor<double> result({qa.size(0), qa.size(1), length, depth});
  const View<double, 4> out = result;
  std::vector<double> scores(static_cast<std::size_t>(length));
  for (Index b = 0; b < qa.size(0); ++b) {
    for (Index h = 0; h < qa.size(1); ++h) {
      for (Index i = 0; i < length; ++i) {
        double mean = 0;
        for (Index j = 0; j < length; ++j) {
          double sum = 0;
          for (Index n = 0; n < depth; ++n) sum += qa(b, h, i, n) * ka(b, h, j, n);
          scores[static_cast<std::size_t>(j)] = scale * sum;
          mean += static_cast<double>(w(b, h, i, j)) * scale * sum;
        }
        for (Index j = 0; j < length; ++j) {
          const double share =
              static_cast<double>(w(b, h, i, j)) * (1 + (scores[static_cast<std::size_t>(j)] + mean) / 4);
          for (Index n = 0; n < depth; ++n) out(b, h, i, n) += share * va(b, h, j, n);
        }
      }
    }
  }
  return result;
}

/// [B, H, T, D] copied to rows [B*T, H*D].
template <class T> Tensor<T> heads_to_rows(View<const T, 4> heads) {
  Tensor<T> rows = converted<T>(heads.transposed(1, 2));
  rows.reshape({heads.size(0) * heads.size(2), heads.size(1) * heads.size(3)});
  return rows;
}

inline constexpr auto kSame = [](auto value) { return value; };
inline constexpr auto kPositive = [](auto value) { return std::abs(value); };

/// The layer's result in T: rows [B*T, E].
template <class T>
Tensor<T> textbook_forward(const Tensor<T>& x, const TextbookLayer& layer, Index batch, Tensor<T>* weights = nullptr) {
  const Tensor<T> projected = textbook_linear(x, layer.in_weight, layer.in_bias, kSame);  // [B*T, 3E]
  const auto heads = [&](int part) { return part_as_heads(projected, batch, layer.num_heads, part); };
  auto attention = reference::attention_forward<T>(heads(0), heads(1), heads(2), textbook_options<T>(layer.causal));
  Tensor<T> attended = heads_to_rows<T>(attention.out);
  if (weights != nullptr) *weights = std::move(attention.weights);
  if (layer.out_weight.empty()) return attended;
  return textbook_linear(attended, layer.out_weight, layer.out_bias, kSame);
}

/// Exact output of a layer, rows [B*T, E], for x [B*T, E].
Truth<double> truth_of(const Tensor<float>& x, const TextbookLayer& layer, Index batch);

/// The parameters of a state dict under the names of v4.
TextbookLayer textbook(const StateDict& state, Index num_heads, bool causal);

}  // namespace qkv::cli
