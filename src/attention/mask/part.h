// One part of a mask: a leaf (causal, documents, ...) or a union. Each part answers for whole tiles: a verdict in O(1),
// conservative where unsure (Partial), and one function that clears the bits of what it drops; for skipping, the keys
// that rows can reach and the next of them. Parts are combined on verdicts and lane masks, never pair
// by pair.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/params.h"
#include "qkv/mask.h"

namespace qkv::inline v0 {

class DenseLeaf;
class DenseSummaries;

/// The sizes that a mask is asked about.
struct MaskExtent {
  Index batch, num_heads, q_len, kv_len;
  Index only = -1;                            // of a ragged batch: the sequence with these lengths; -1: all
  const DenseSummaries* summaries = nullptr;  // of the call's dense masks; null: there are none
};

/// Queries [i0, i0 + ni) x keys [j0, j0 + nj) of head h of sequence b.
struct Pairs {
  MaskExtent extent;
  Index b, h, i0, ni, j0, nj;
};

/// Positions [begin, end).
struct Positions {
  Index begin, end;
};

class MaskPart {
 public:
  virtual ~MaskPart();

  /// kTileFull and kTileEmpty are promises, kTilePartial is none. O(1), or O(log n) of the blocks in a row and of
  /// global rows or columns.
  virtual int verdict(const Pairs& pairs) const = 0;
  /// Clears the bits of dropped lanes i in the lane mask lane_masks[j]; called if the verdict is kTilePartial. Bits
  /// that are not set need not be examined. At most 32 queries.
  virtual void fill(const Pairs& pairs, std::uint32_t* lane_masks) const = 0;

  /// Keys that any of queries [i0, i0 + ni) of any head might attend: j0 and nj do not matter. The default: all.
  virtual Positions keys(const Pairs& rows) const { return {0, rows.extent.kv_len}; }
  /// Queries that might attend any of keys [j0, j0 + nj), where next_key does not tell: i0 and ni do not matter.
  virtual Positions queries(const Pairs& columns) const { return {0, columns.extent.q_len}; }
  /// The first key from j0 on that any of the queries might attend, in this head; kv_len or more: none.
  virtual Index next_key(const Pairs& from) const {
    const Positions live = keys(from);
    return from.j0 >= live.end ? from.extent.kv_len : std::max(from.j0, live.begin);
  }

  virtual bool differs_by_head() const { return false; }
  /// Of itself, or of the parts that it joins.
  virtual void visit_dense(const std::function<void(const DenseLeaf&)>&) const {}
  /// Whether it cuts keys at the length of a sequence: bottom-right alignment would then show the future.
  virtual bool holds_key_lengths() const { return false; }
  /// The order in which parts fill: positions, then memory, then callbacks, which are not called for pairs already
  /// dropped.
  enum class Cost { kPositions, kMemory, kCallback };
  virtual Cost cost() const { return Cost::kPositions; }

  /// "causal(bottom-right)". With `inside` it is part of a conjunction, where a union needs parentheses.
  virtual std::string text(bool inside) const = 0;
  /// Throws ShapeError or OptionError if the part does not fit the sizes. `key_lengths`: it is cut by lengths.
  virtual void check(const MaskExtent& extent, bool key_lengths, const char* function) const = 0;
};

using MaskPartPtr = std::shared_ptr<const MaskPart>;
using IndexSpan = std::span<const Index>;

constexpr Index kFar = Index{1} << 60;  // beyond every position; sums of a few do not overflow

/// All of its parts keep.
struct Mask::Node {
  std::vector<MaskPartPtr> parts;  // by cost

  /// A leaf alone: what the constructors of Mask, each beside its leaf, are made of.
  template <class Leaf, class... Arguments> static std::shared_ptr<const Node> of(Arguments&&... arguments) {
    auto node = std::make_shared<Node>();
    node->parts.push_back(std::make_shared<Leaf>(std::forward<Arguments>(arguments)...));
    return node;
  }
};

/// Bits [begin, end) of a lane mask of 32, clamped.
inline std::uint32_t bit_range(Index begin, Index end) {
  const auto below = [](Index n) { return n >= 32 ? ~0U : n <= 0 ? 0U : (1U << n) - 1U; };
  return below(end) & ~below(begin);
}

inline Index floor_div(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }
inline Index floor_mod(Index a, Index b) { return a - floor_div(a, b) * b; }

/// i + this is the key on the diagonal of query i.
inline Index alignment_offset(Align align, Index q_len, Index kv_len) {
  return align == Align::kBottomRight ? kv_len - q_len : 0;
}

/// ", bottom-right"; nothing for kSquare.
std::string align_suffix(Align align);
/// Throws OptionError if `what` comes without an alignment and the sizes differ.
void check_square(const char* function, const char* what, Align align, Index q_len, Index kv_len);
/// Throws ShapeError unless there is one value per sequence.
void check_one_each(const char* function, const char* what, std::size_t values, Index batch);
/// Throws OptionError unless blocks of these sizes can be counted and multiplied without overflow.
void check_block(Index q_block, Index kv_block, const char* function);

}  // namespace qkv::inline v0
