// The sequences of one checked call, in parts of equal lengths, so that one driver per direction computes dense and
// ragged batches (forward_driver.cc, backward_driver.cc). A dense batch is one part, B sequences; in a ragged batch
// every sequence is one, a Problem of its own: its views have all B sequences on their first axis with stride 0, so
// that masks, dropout and biases get its true number b.
#pragma once

#include <algorithm>
#include <span>

#include "attention/call/problem.h"
#include "qkv/varlen.h"

namespace qkv::inline v0 {

/// Checks a ragged call, but for its outputs.
struct RaggedCall {
  /// Throws ShapeError, OptionError, UnsupportedError.
  RaggedCall(const char* function, const AnyView& q, const AnyView& k, const AnyView& v, const RaggedOffsets& where,
      const AttentionOptions& given_options, Context& context, bool reads_v = true);

  RaggedOffsets offsets;
  const AttentionOptions& options;
  Index batch = 0;
  Problem all;      // all tokens as one sequence, without a mask
  Problem longest;  // the longest queries and the most keys: what scratch must hold
  CallMemory memory;
  const DenseSummaries* summaries = nullptr;
  ScratchLease problems;  // [B]: of each sequence

  MaskExtent extent(Index b) const;
  void use_sum_tiles() {
    all.use_sum_tiles();
    longest.use_sum_tiles();
    for (Index b = 0; b < batch; ++b) problems.as<Problem>()[b].use_sum_tiles();
  }
};

class Batch {
 public:
  /// Both refer to their arguments.
  explicit Batch(const Problem& dense) : longest_(dense) {}
  explicit Batch(const RaggedCall& ragged) : longest_(ragged.longest), ragged_(&ragged) {}

  bool is_ragged() const { return ragged_ != nullptr; }
  /// A problem with the longest queries and the most keys; for a dense batch, the problem itself.
  const Problem& longest() const { return longest_; }
  Index parts() const { return is_ragged() ? ragged_->batch : 1; }
  /// The sequences of part n are first_sequence(n) + [0, num_sequences(n)).
  Index first_sequence(Index n) const { return is_ragged() ? n : 0; }
  Index num_sequences() const { return is_ragged() ? 1 : longest_.batch; }  // of a part
  Index q_len(Index n) const { return is_ragged() ? length(ragged_->offsets.q_offsets, n) : longest_.q_len; }
  Index kv_len(Index n) const { return is_ragged() ? length(ragged_->offsets.kv_offsets, n) : longest_.kv_len; }
  /// Queries of all parts before part n, and of all parts.
  Index queries_before(Index n) const { return is_ragged() ? begin(ragged_->offsets.q_offsets, n) : 0; }
  Index num_queries() const { return is_ragged() ? ragged_->all.q_len : longest_.batch * longest_.q_len; }
  /// Pairs of queries and keys of part n, over all heads.
  double pairs(Index n) const {
    return static_cast<double>(num_sequences() * longest_.num_heads) * static_cast<double>(q_len(n)) *
           static_cast<double>(kv_len(n));
  }

  /// Of the call's scratch, for the problems of its sequences.
  std::size_t shared_bytes() const;
  /// The problem of part n.
  const Problem& part(Index n) const { return is_ragged() ? ragged_->problems.as<Problem>()[n] : longest_; }
  /// Part n of a tensor of the call, [B, H, T, ..], in a ragged batch [1, H, total, ..]. Null stays null.
  AnyView queries(const AnyView& all, Index n) const {
    return is_ragged() ? rows(all, ragged_->offsets.q_offsets, n) : all;
  }
  AnyView keys(const AnyView& all, Index n) const {
    return is_ragged() ? rows(all, ragged_->offsets.kv_offsets, n) : all;
  }

 private:
  static Index begin(const Offsets& offsets, Index n) { return offsets[static_cast<std::size_t>(n)]; }
  static Index length(const Offsets& offsets, Index n) { return begin(offsets, n + 1) - begin(offsets, n); }
  AnyView rows(const AnyView& tokens, const Offsets& offsets, Index n) const;

  const Problem& longest_;
  const RaggedCall* ragged_ = nullptr;
};

/// The last part whose first item is at or before `item`.
template <class Part> const Part& part_of(std::span<const Part> parts, Index item) {
  if (parts.size() == 1) return parts[0];
  const auto behind = [](Index number, const Part& part) { return number < part.first_item; };
  return *(std::upper_bound(parts.begin(), parts.end(), item, behind) - 1);
}

}  // namespace qkv::inline v0
