// One checked call over a ragged batch: what all sequences share, and each sequence as a Problem of its own. A sequence's views
// have all B sequences on their first axis with stride 0, so that masks, dropout and biases see its true number b. Not: work
// items and their order (varlen_forward.cc, varlen_backward.cc).
#pragma once

#include <algorithm>
#include <span>

#include "attention/problem.h"
#include "qkv/varlen.h"

namespace qkv {
inline namespace v0 {

template <class T>
struct RaggedProblem {
  /// Checks everything but outputs. Throws ShapeError, OptionError.
  RaggedProblem(const char* function, const View<const T, 3>& q_tokens, const View<const T, 3>& k_tokens,
                const View<const T, 3>& v_tokens, const RaggedOffsets& its_offsets, const AttentionOptions& its_options,
                Context& context);
  View<const T, 3> q, k, v;
  RaggedOffsets offsets;
  const AttentionOptions& options;
  Problem<T> shared;  // one sequence of all tokens, without a mask
  CallMemory memory;
  const DenseSummaries* summaries = nullptr;
  Index batch = 0, longest_q = 0, longest_kv = 0;
  double pairs = 0;  // of queries and keys, over all heads

  Index q_len(Index b) const { return length(offsets.q_offsets, b); }
  Index kv_len(Index b) const { return length(offsets.kv_offsets, b); }
  MaskExtent extent(Index b) const { return {batch, shared.num_heads, q_len(b), kv_len(b), b, summaries}; }
  Index q_begin(Index b) const { return offsets.q_offsets[static_cast<std::size_t>(b)]; }

  /// Sequence b; refers to this.
  Problem<T> sequence(Index b) const;

  /// The rows of sequence b of tokens [total, heads, width], as [B, heads, T, width] whose first axis repeats. Null stays null.
  template <class U>
  View<U, 4> queries(const View<U, 3>& tokens, Index b) const {
    return rows(tokens, offsets.q_offsets, b);
  }
  template <class U>
  View<U, 4> keys(const View<U, 3>& tokens, Index b) const {
    return rows(tokens, offsets.kv_offsets, b);
  }
  /// The same of numbers [total_q, heads], as [B, heads, T].
  template <class U>
  View<U, 3> query_numbers(const View<U, 2>& tokens, Index b) const {
    if (tokens.data() == nullptr) return {};
    return {tokens.data() + q_begin(b) * tokens.stride(0),
            {batch, tokens.size(1), q_len(b)},
            {0, tokens.stride(1), tokens.stride(0)}};
  }

 private:
  static Index length(const Offsets& its_offsets, Index b) {
    return its_offsets[static_cast<std::size_t>(b) + 1] - its_offsets[static_cast<std::size_t>(b)];
  }
  template <class U>
  View<U, 4> rows(const View<U, 3>& tokens, const Offsets& its_offsets, Index b) const {
    if (tokens.data() == nullptr) return {};
    return {tokens.data() + its_offsets[static_cast<std::size_t>(b)] * tokens.stride(0),
            {batch, tokens.size(1), length(its_offsets, b), tokens.size(2)},
            {0, tokens.stride(1), tokens.stride(0), tokens.stride(2)}};
  }
};

/// ShapeError unless tokens are [total, heads, width] with last stride 1.
template <class T>
void check_tokens(const char* function, const char* name, const View<T, 3>& tokens, Index total, Index heads, Index width);

/// The last place whose first item is not behind `item`.
template <class Place>
const Place& place_of(std::span<const Place> places, Index item) {
  const auto behind = [](Index number, const Place& place) { return number < place.first_item; };
  return *(std::upper_bound(places.begin(), places.end(), item, behind) - 1);
}

/// Whole cache lines.
constexpr std::size_t lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace v0
}  // namespace qkv
