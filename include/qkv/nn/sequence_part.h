// Attention where each rank holds some tokens of every sequence: what a layer calls instead of attention_forward and
// attention_backward. Not: what the ranks send each other (qkv/dist/context_parallel.h, which does it).
#pragma once

#include <span>

#include "qkv/attention.h"

namespace qkv::inline v0::nn {

class QKV_API SequencePart {
 public:
  virtual ~SequencePart();
  /// Of each token that this rank holds, in the order of its rows, the position in the whole sequence.
  virtual std::span<const Index> positions() const = 0;
  /// As attention_forward and attention_backward, for local rows; masks and dropout count in the whole sequence.
  virtual void forward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v, View<float, 4> out,
      View<float, 3> lse, const AttentionOptions& options) = 0;
  virtual void backward(View<const float, 4> q, View<const float, 4> k, View<const float, 4> v,
      View<const float, 4> out, View<const float, 3> lse, View<const float, 4> dout,
      const AttentionGradients<float>& gradients, const AttentionOptions& options) = 0;
};

}  // namespace qkv::inline v0::nn
