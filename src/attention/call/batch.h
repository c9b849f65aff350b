// The sequences of one checked call, in parts of equal lengths, so that one driver per direction computes dense and ragged
// batches (forward_driver.cc, backward_driver.cc). A dense batch is one part, B sequences; in a ragged batch every sequence is
// one.
#pragma once

#include <algorithm>
#include <span>

#include "attention/call/ragged.h"

namespace qkv::inline v0 {

template <class T>
class Batch {
 public:
  /// Both refer to their arguments.
  explicit Batch(const Problem<T>& dense) : longest_(dense) {}
  explicit Batch(const RaggedProblem<T>& ragged) : longest_(ragged.longest), ragged_(&ragged) {}

  bool is_ragged() const { return ragged_ != nullptr; }
  /// A problem with the longest queries and the most keys; for a dense batch, the problem itself.
  const Problem<T>& longest() const { return longest_; }
  Index parts() const { return is_ragged() ? ragged_->batch : 1; }
  /// The sequences of part n are first_sequence(n) + [0, num_sequences(n)).
  Index first_sequence(Index n) const { return is_ragged() ? n : 0; }
  Index num_sequences(Index) const { return is_ragged() ? 1 : longest_.batch; }
  Index kv_len(Index n) const { return is_ragged() ? ragged_->kv_len(n) : longest_.kv_len; }
  /// Queries of all parts before part n, and of all parts.
  Index queries_before(Index n) const { return is_ragged() ? ragged_->q_begin(n) : 0; }
  Index num_queries() const { return is_ragged() ? ragged_->shared.q_len : longest_.batch * longest_.q_len; }
  /// Pairs of queries and keys of part n, over all heads.
  double pairs(Index n) const {
    const Index q_len = is_ragged() ? ragged_->q_len(n) : longest_.q_len;
    return static_cast<double>(num_sequences(n) * longest_.num_heads) * static_cast<double>(q_len) *
           static_cast<double>(kv_len(n));
  }

  /// body(problem of part n).
  template <class Body>
  auto with_part(Index n, const Body& body) const {
    if (!is_ragged()) return body(longest_);
    const Problem<T> sequence = ragged_->sequence(n);
    return body(sequence);
  }
  /// Part n of a tensor of the call, [B, H, T, width], in a ragged batch [1, H, total, width]. Null stays null.
  template <class U>
  View<U, 4> queries(const View<U, 4>& all, Index n) const {
    return is_ragged() ? ragged_->queries(all, n) : all;
  }
  template <class U>
  View<U, 4> keys(const View<U, 4>& all, Index n) const {
    return is_ragged() ? ragged_->keys(all, n) : all;
  }
  template <class U>
  View<U, 3> query_numbers(const View<U, 3>& all, Index n) const {
    return is_ragged() ? ragged_->query_numbers(all, n) : all;
  }

 private:
  const Problem<T>& longest_;
  const RaggedProblem<T>* ragged_ = nullptr;
};

/// The last part whose first item is at or before `item`.
template <class Part>
const Part& part_of(std::span<const Part> parts, Index item) {
  if (parts.size() == 1) return parts[0];
  const auto behind = [](Index number, const Part& part) { return number < part.first_item; };
  return *(std::upper_bound(parts.begin(), parts.end(), item, behind) - 1);
}

}  // namespace qkv::inline v0
