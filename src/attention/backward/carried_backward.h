// Backward attention of some queries whose keys arrive in chunks: dq has the bits of attention_backward on all keys at once, in
// memory that does not grow with the keys.
#pragma once

#include <memory>

#include "attention/backward/backward_driver.h"
#include "attention/plan/carried.h"

namespace qkv::inline v0 {

/// Whether CarriedBackward computes a call of these sizes, of whose queries q has some: not what reads listed keys alone.
template <class T>
bool carries_backward(const View<const T, 4>& q, const KeySizes& keys, Index queries, const AttentionOptions& options,
                      Context& context);

/// Whether backward needs the keys of these rows' heads twice: an lse this large was rounded, and add_maxima undoes that.
template <class Sum>
bool lse_is_coarse(const View<const Sum, 3>& lse);

template <class T>
class QKV_API CarriedBackward {
 public:
  using Sum = Accumulator<T>;
  /// Arguments as attention_backward has them, but for the keys; of the gradients dq, dlse and accumulate. The options are copied;
  /// tensors and context must live as long.
  CarriedBackward(const View<const T, 4>& q, const KeySizes& keys, const BackwardInputs<T>& inputs,
                  const AttentionGradients<T>& gradients, const AttentionOptions& options, Context& context);
  ~CarriedBackward();

  /// Where an lse of any row is coarse: once all keys, without values, by carried_step, then end_maxima(). Some may be left out
  /// that no query attends.
  void add_maxima(const KeyChunk<T>& chunk);
  void end_maxima();

  /// Then all keys, by carried_step. Adds to dk and dv [B, Hkv, some, ..] of the chunk, and the chunk's share to the gradients that
  /// are shared: dbias, dposition_bias, and, with the last chunk, dsinks.
  void add(const KeyChunk<T>& chunk, const View<Sum, 4>& dk, const View<Sum, 4>& dv, const AttentionGradients<T>& shared);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
