// A call whose mask lists each query's keys (Mask::keys): when only those are read. A query's listed rows of K and V
// are pages of one row, in the order of keys, for all query heads that share the list and the key/value head.
#pragma once

#include "attention/call/problem.h"
#include "attention/mask/key_lists.h"

namespace qkv::inline v0 {

/// Below this many keys the start of another algorithm than tiles costs more than it saves.
inline constexpr Index kDecodeMinKeys = 64;

class Listed {
 public:
  /// Refers to the problem.
  explicit Listed(const Problem& p);

  /// Decided by shapes and options of the whole problem: neither threads, outputs asked for, other sequences nor how
  /// many of its rows and heads are here change bits, where a key/value head comes with all its query heads
  /// (AttentionOptions::part).
  bool applies() const { return applies_; }
  /// Whether backward goes by the lists too. Its kernel uses a lane a head, so keys must be fewer; empty rows give
  /// nothing.
  bool applies_backward() const {
    return applies_ && p_.empty_row == EmptyRow::kZero && lists_->width() * 2 * factor() <= p_.kv_len;
  }
  /// Heads that share a list and K and V: head h0 = block * block_heads() and those after it.
  Index block_heads() const { return block_heads_; }
  Index blocks() const { return p_.num_heads / block_heads_; }
  Index longest() const { return lists_->longest(); }

  /// The rows of K and V that query i of the heads from h0 on attends, both counted here, among keys [begin, end).
  /// `pages`: memory of longest() numbers, to which the result refers; keys[n] is set to the number of row n's key
  /// unless null.
  HeadKeys rows(Index b, Index h0, Index i, Index begin, Index end, Index* pages, Index* keys) const;

 private:
  bool serves_options() const {
    return p_.bias.is_null() && p_.position_bias->is_none() && p_.score_mod == nullptr && p_.dropout_threshold == 0;
  }
  /// Whether fewer keys are worth the loss of neighbours: a listed row is read for the heads of a block alone, where
  /// tiles read it for many queries. By sizes that a sequence has alone as in any batch: on a cache, whose sequences
  /// differ in length, not by Tk. The factors are measured: forward of 2,048 to 8,192 queries on 4,096 and 8,192 keys,
  /// D 128, on Zen 5.
  bool pays() const {
    const bool few = p_.queries * p_.group_size() <= kDecodeRowLimit;
    if (p_.keys.is_cache()) return few || block_heads_ >= 4;
    return p_.kv_len >= kDecodeMinKeys && lists_->width() * (few ? 2 : factor()) <= p_.kv_len;
  }
  Index factor() const { return block_heads_ >= 8 ? 3 : block_heads_ >= 4 ? 5 : block_heads_ >= 2 ? 8 : 12; }

  const Problem& p_;
  const KeyLists* lists_;
  Index block_heads_ = 1;
  bool filters_ = false, applies_ = false;
};

}  // namespace qkv::inline v0
