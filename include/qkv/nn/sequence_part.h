// Attention where each rank holds some tokens of every sequence: what a layer calls instead of attention_forward and
// attention_backward. Not: what the ranks send each other (qkv/dist/context_parallel.h, which does it).
#pragma once

#include <functional>
#include <vector>

#include "qkv/attention.h"

namespace qkv::inline v0::nn {

/// As attention_forward and attention_backward, for local rows; masks and dropout count in the whole sequence.
struct SequencePart {
  /// Of each token that this rank holds, in the order of its rows, the position in the whole sequence.
  std::vector<Index> positions;
  std::function<void(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<float, 4> out,
      View<float, 3> lse, const AttentionOptions& options)>
      forward;
  std::function<void(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<const float, 4> out,
      View<const float, 3> lse, View<const float, 4> dout, const AttentionGradients<float>& gradients,
      const AttentionOptions& options)>
      backward;
};

}  // namespace qkv::inline v0::nn
