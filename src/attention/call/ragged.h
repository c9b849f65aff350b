// One checked call over a ragged batch: what all sequences share, and each sequence as a Problem of its own. A sequence's views
// have all B sequences on their first axis with stride 0, so that masks, dropout and biases get its true number b.
#pragma once

#include "attention/call/problem.h"
#include "qkv/varlen.h"

namespace qkv::inline v0 {

/// Views numbers [total, heads] as one sequence, [1, heads, total]; for tokens see qkv/view.h. Null stays null.
template <class T>
View<T, 3> one_sequence(const View<T, 2>& numbers) {
  return {numbers.data(), {1, numbers.size(1), numbers.size(0)}, {0, numbers.stride(1), numbers.stride(0)}};
}

template <class T>
struct RaggedProblem {
  /// Checks everything but outputs. Throws ShapeError, OptionError.
  RaggedProblem(const char* function, const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v,
                const RaggedOffsets& its_offsets, const AttentionOptions& its_options, Context& context,
                Use use = Use::kMaskLater);
  RaggedOffsets offsets;
  const AttentionOptions& options;
  Problem<T> shared;   // one sequence of all tokens, without a mask
  Problem<T> longest;  // the longest queries and the most keys: what scratch must hold
  CallMemory memory;
  const DenseSummaries* summaries = nullptr;
  Index batch = 0;

  Index q_len(Index b) const { return length(offsets.q_offsets, b); }
  Index kv_len(Index b) const { return length(offsets.kv_offsets, b); }
  MaskExtent extent(Index b) const { return {batch, shared.num_heads, q_len(b), kv_len(b), b, summaries}; }
  Index q_begin(Index b) const { return offsets.q_offsets[static_cast<std::size_t>(b)]; }

  /// The problem of sequence b; it refers to this object.
  Problem<T> sequence(Index b) const;

  /// The rows of sequence b within all tokens, [1, heads, total, width]: a view [B, heads, T, width] whose first axis repeats.
  /// Null stays null.
  template <class U>
  View<U, 4> queries(const View<U, 4>& tokens, Index b) const {
    return rows(tokens, offsets.q_offsets, b);
  }
  template <class U>
  View<U, 4> keys(const View<U, 4>& tokens, Index b) const {
    return rows(tokens, offsets.kv_offsets, b);
  }
  /// The same for numbers [1, heads, total_q], as [B, heads, T].
  template <class U>
  View<U, 3> query_numbers(const View<U, 3>& tokens, Index b) const {
    if (tokens.data() == nullptr) return {};
    return {tokens.data() + q_begin(b) * tokens.stride(2),
            {batch, tokens.size(1), q_len(b)},
            {0, tokens.stride(1), tokens.stride(2)}};
  }

 private:
  static Index length(const Offsets& its_offsets, Index b) {
    return its_offsets[static_cast<std::size_t>(b) + 1] - its_offsets[static_cast<std::size_t>(b)];
  }
  template <class U>
  View<U, 4> rows(const View<U, 4>& tokens, const Offsets& its_offsets, Index b) const {
    if (tokens.data() == nullptr) return {};
    return {tokens.data() + its_offsets[static_cast<std::size_t>(b)] * tokens.stride(2),
            {batch, tokens.size(1), length(its_offsets, b), tokens.size(3)},
            {0, tokens.stride(1), tokens.stride(2), tokens.stride(3)}};
  }
};

/// Throws ShapeError unless tokens are [total, heads, width] with last stride 1.
template <class T>
void check_tokens(const char* function, const char* name, const View<T, 3>& tokens, Index total, Index heads, Index width);

}  // namespace qkv::inline v0
