// A summary of a call's dense masks before it starts: for each block of queries x keys whether all pairs are kept,
// none or some. Two bits per block, read once and in parallel. So blocks that hide everything are skipped and those
// that hide nothing need no lane masks, for every head and sweep, forward and backward. Ids of documents are summarised
// when their mask is made (mask/ids.cc).
#pragma once

#include <cstdint>

#include "attention/mask/part.h"
#include "core/threads/scratch.h"

namespace qkv::inline v0 {

/// The numbers behind a dense leaf, [B|1, H|1, Tq|1, Tk|1]; an axis of size 1 repeats.
struct DenseValues {
  View<const std::uint8_t, 4> values;
  bool keep;  // non-zero is kept, or dropped

  Index stride(int axis) const { return values.size(axis) == 1 ? 0 : values.stride(axis); }
};

class DenseLeaf : public MaskPart {
 public:
  explicit DenseLeaf(DenseValues dense) : dense_(dense) {}
  const DenseValues& dense() const { return dense_; }
  void visit_dense(const std::function<void(const DenseLeaf&)>& visit) const final { visit(*this); }

 private:
  DenseValues dense_;
};

/// visit(leaf) for every dense leaf of a mask, unions included, in one order. Allocates nothing.
template <class Visit> void each_dense(const Mask::Node* node, const Visit& visit) {
  if (node == nullptr) return;
  for (const MaskPartPtr& part : node->parts) part->visit_dense(std::ref(visit));
}

/// Two bits per block of one leaf: something is dropped, something is kept. [planes][row blocks][row_bytes], four
/// blocks of keys per byte.
struct DenseSummary {
  const DenseLeaf* leaf;
  DenseValues dense;
  Index block_queries, block_keys, row_blocks, column_blocks, row_bytes;
  std::uint8_t* blocks;

  /// Blocks of 32 x 64, or as much larger as `limit_bytes` demands; none if no size fits.
  DenseSummary(const DenseLeaf& of, std::size_t limit_bytes);

  Index planes() const { return dense.values.size(0) * dense.values.size(1); }
  Index items() const { return planes() * row_blocks; }
  std::size_t bytes() const { return static_cast<std::size_t>(items() * row_bytes); }

  /// Reads one row of blocks.
  void fill(Index item) const;
  int verdict(const Pairs& pairs) const;
  /// The first key from from.j0 on whose block is not empty for one of the queries; kv_len: none.
  Index next_key(const Pairs& from) const;

 private:
  void measure(Index queries, Index keys);
  int held_by(const std::uint8_t* from, Index queries, Index keys) const;
  const std::uint8_t* row(const Pairs& pairs, Index row_block) const {
    const Index plane =
        (dense.values.size(0) == 1 ? 0 : pairs.b) * dense.values.size(1) + (dense.values.size(1) == 1 ? 0 : pairs.h);
    return blocks + (plane * row_blocks + row_block) * row_bytes;
  }
  Positions row_blocks_of(const Pairs& pairs) const {
    if (dense.values.size(2) == 1) return {0, 1};
    return {pairs.i0 / block_queries, (pairs.i0 + pairs.ni - 1) / block_queries + 1};
  }
  Index next_in_row(const std::uint8_t* row, Index block, Index end) const;
};

/// The summaries of one call. Lives as long as the call.
class DenseSummaries {
 public:
  /// Of a shared megabyte: a mask of 65,536 x 65,536 takes half of it per plane.
  static constexpr std::size_t kLimitBytes = std::size_t{1} << 20;

  /// Borrowed by make().
  static std::size_t bytes(const Mask::Node* node);
  /// Reads the dense leaves of a mask that fits the call. Returns this; null where there are none.
  const DenseSummaries* make(const Mask::Node* node, Context& context);

  /// The summary of this leaf; null: not summarised.
  const DenseSummary* of(const DenseLeaf* leaf) const {
    for (Index n = 0; n < count_; ++n) {
      if (summaries_[n].leaf == leaf) return summaries_ + n;
    }
    return nullptr;
  }

 private:
  ScratchLease memory_;
  const DenseSummary* summaries_ = nullptr;
  Index count_ = 0;
};

}  // namespace qkv::inline v0
