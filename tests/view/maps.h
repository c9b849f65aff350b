// Maps that the tests of pictures share.
#pragma once

#include <limits>

#include "qkv/view/heatmap.h"

namespace qkv::view {

/// Causal rows that sum to 1, different in every layer and head: weight on j falls with i - j, and is exactly 0 for j >
/// i.
inline AttentionMap causal_map(
    Index layers, Index heads, Index length, std::vector<std::string> tokens = {}, std::string title = {}) {
  Tensor<float> weights({layers, heads, length, length});  // [L, H, Tq, Tk]
  const View<float, 4> w = weights.view<4>();
  for (Index l = 0; l < layers; ++l) {
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < length; ++i) {
        float sum = 0;
        for (Index j = 0; j <= i; ++j)
          sum += w(l, h, i, j) = 1.0f / static_cast<float>(1 + (i - j) * (h + 1) + l * (j % 3));
        for (Index j = 0; j <= i; ++j) w(l, h, i, j) /= sum;
      }
    }
  }
  return make_map(View<const float, 4>(weights), std::move(tokens), std::move(title));
}

inline AttentionMap empty_map(Index q_len, Index kv_len) {
  AttentionMap map;
  map.weights = Tensor<float>({1, 2, q_len, kv_len});
  return map;
}

/// Two queries, three keys; the first row is NaN.
inline AttentionMap nan_map() {
  AttentionMap map;
  map.weights = Tensor<float>({1, 1, 2, 3});
  for (Index j = 0; j < 3; ++j) map.weights.data()[j] = std::numeric_limits<float>::quiet_NaN();
  map.weights.data()[3] = 1;
  return map;
}

/// Labels that try to break out of each format.
inline std::vector<std::string> hostile_tokens() {
  return {"<script>alert(1)</script>", "\"'&]]>", "\x1b[31mred\x1b]0;title\x07", std::string("\0\x01\x7f", 3),
      "\xff\xc0\xaf", "</script><img src=x onerror=alert(1)>", "\xe2\x80\xae reversed \xe2\x80\xa8",
      "\xe7\x8c\xab\n\t"};
}

}  // namespace qkv::view
