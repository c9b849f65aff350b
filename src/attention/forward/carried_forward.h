// Forward attention of some queries whose keys arrive in chunks: the bits of attention_forward on all keys at once, in
// memory that does not grow with the keys.
#pragma once

#include <memory>

#include "attention/plan/carried.h"

namespace qkv::inline v0 {

/// Whether CarriedForward computes a call of these sizes, of whose queries q has some: not what decode does, nor what
/// reads listed keys alone, nor a mean over all values.
QKV_API bool carries_forward(
    const AnyView& q, const KeySizes& keys, Index queries, const AttentionOptions& options, Context& context);

class QKV_API CarriedForward {
 public:
  /// Arguments as attention_forward has them, but for the keys; lse may be null. The options are copied; outputs, q and
  /// context must live as long.
  CarriedForward(const AnyView& q, const KeySizes& keys, const AnyView& out, const AnyView& lse,
      const AttentionOptions& options, Context& context);
  ~CarriedForward();

  /// The next keys, by carried_step. Some may be left out that no query attends.
  void add(const KeyChunk& chunk);
  /// After the last ones: writes out and lse. True where rows overflowed: then all keys must be added once more, and
  /// the next finish() gives false. (Weights above 1 may overflow where the formula's would not; then they are taken
  /// relative to the row's maximum.)
  bool finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
