// The leaf of a mask that lists each query's keys, and what the calls that read only listed keys ask of it.
#pragma once

#include <limits>
#include <span>

#include "attention/mask/part.h"

namespace qkv::inline v0 {

class KeyLists final : public MaskPart {
 public:
  /// index [B|1, heads, Tq, k], copied; -1: none. Throws OptionError for a key below -1 or listed twice by a row.
  explicit KeyLists(const View<const std::int32_t, 4>& index);

  /// Of num_heads query heads, `group` of which share K and V: how many attend the same keys, one after the other. They
  /// share a list, and no other part of the mask, `whole`, differs by head.
  Index block_heads(const Mask::Node& whole, Index group, Index num_heads) const;
  /// k: room for keys in a row of the index.
  Index width() const { return width_; }
  /// Keys of the longest list.
  Index longest() const { return longest_; }
  /// The keys of query i of head h of num_heads, ascending.
  std::span<const std::int32_t> row(Index b, Index h, Index num_heads, Index i) const {
    const auto n = static_cast<std::size_t>(((batch_ == 1 ? 0 : b) * heads_ + h / (num_heads / heads_)) * q_len_ + i);
    return {keys_.data() + begins_[n], keys_.data() + begins_[n + 1]};
  }
  /// Throws OptionError if sequence b lists a key from `length` on.
  void check_length(Index b, Index length, const char* function) const;

  int verdict(const Pairs& pairs) const override;
  void fill(const Pairs& pairs, std::uint32_t* lane_masks) const override;
  Positions keys(const Pairs& rows) const override;
  Index next_key(const Pairs& from) const override;
  bool differs_by_head() const override { return heads_ > 1; }
  Cost cost() const override { return Cost::kMemory; }
  std::string text(bool inside) const override;
  void check(const MaskExtent& extent, bool key_lengths, const char* function) const override;

 private:
  /// The first and the last key of a query in any head; -1: none.
  struct Reach {
    std::int32_t first = std::numeric_limits<std::int32_t>::max(), last = -1;
  };

  Index batch_, heads_, q_len_, width_, longest_ = 0;
  std::vector<std::int32_t> keys_;   // row after row
  std::vector<std::size_t> begins_;  // [rows + 1]
  std::vector<std::int32_t> last_;   // [B|1]: the last key of any list; -1: none
  std::vector<Reach> reach_;         // [B|1, Tq]
};

/// The lists among the parts that must all keep, if there is exactly one such leaf; null otherwise.
const KeyLists* key_lists_of(const Mask::Node* node);

}  // namespace qkv::inline v0
