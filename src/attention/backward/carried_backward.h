// Backward attention of some queries whose keys arrive in chunks: dq has the bits of attention_backward on all keys at
// once, in memory that does not grow with the keys.
#pragma once

#include <memory>

#include "attention/backward/backward_driver.h"
#include "attention/plan/carried.h"

namespace qkv::inline v0 {

/// Whether CarriedBackward computes a call of these sizes, of whose queries q has some: not what reads listed keys
/// alone.
QKV_API bool carries_backward(
    const AnyView& q, const KeySizes& keys, Index queries, const AttentionOptions& options, Context& context);

/// Whether backward needs the keys of these rows' heads twice: an lse this large was rounded, and add_maxima undoes
/// that.
QKV_API bool lse_is_coarse(const AnyView& lse);

class QKV_API CarriedBackward {
 public:
  /// Arguments as attention_backward has them, but for the keys; of the gradients dq, dlse and accumulate. The options
  /// are copied; tensors and context must live as long.
  CarriedBackward(const AnyView& q, const KeySizes& keys, const BackwardInputs& inputs, const Gradients& gradients,
      const AttentionOptions& options, Context& context);
  ~CarriedBackward();

  /// Where an lse of any row is coarse: once all keys, without values, by carried_step, then end_maxima(). Some may be
  /// left out that no query attends.
  void add_maxima(const KeyChunk& chunk);
  void end_maxima();

  /// Then all keys, by carried_step. Adds to dk and dv [B, Hkv, some, ..] of the chunk, and the chunk's share to the
  /// gradients that are shared: dbias, dposition_bias, and, with the last chunk, dsinks.
  void add(const KeyChunk& chunk, const AnyView& dk, const AnyView& dv, const Gradients& shared);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
