// Documents by ids, in any order. Ids are summarised once, when the mask is made: the smallest and largest id of each
// block of 32 positions, and how far equal ids reach on the other side.
#include <limits>
#include <unordered_map>

#include "attention/mask/part.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kBlock = 32;

struct Ends {
  Index smallest, largest;
};

/// The ids of one side, [1 or B][length].
class Ids {
 public:
  explicit Ids(View<const Index, 2> ids) : sequences_(ids.size(0)), length_(ids.size(1)) {
    for (Index b = 0; b < sequences_; ++b) {
      for (Index p = 0; p < length_; ++p) ids_.push_back(ids(b, p));
      for (Index begin = 0; begin < length_; begin += kBlock) {
        const Index* first = row(b) + begin;
        const auto [low, high] = std::minmax_element(first, first + std::min(kBlock, length_ - begin));
        ends_.push_back({*low, *high});
      }
    }
  }

  Index sequences() const { return sequences_; }
  Index length() const { return length_; }
  Index blocks() const { return (length_ + kBlock - 1) / kBlock; }
  const Index* row(Index b) const { return ids_.data() + (sequences_ == 1 ? 0 : b) * length_; }
  /// The ends of positions [begin, begin + n) and perhaps of their neighbours.
  Ends ends(Index b, Index begin, Index n) const {
    const Ends* blocks_of = ends_.data() + (sequences_ == 1 ? 0 : b) * blocks();
    Ends all = blocks_of[begin / kBlock];
    for (Index block = begin / kBlock + 1; block <= (begin + n - 1) / kBlock; ++block) {
      all = {std::min(all.smallest, blocks_of[block].smallest), std::max(all.largest, blocks_of[block].largest)};
    }
    return all;
  }

 private:
  Index sequences_, length_;
  std::vector<Index> ids_;
  std::vector<Ends> ends_;  // [1 or B][blocks]
};

/// For each block of 32 positions of one side: the positions of the other side that hold one of its ids.
class BlockReach {
 public:
  BlockReach(const Ids& from, const Ids& to)
      : sequences_(std::max(from.sequences(), to.sequences())), blocks_(from.blocks()) {
    for (Index b = 0; b < sequences_; ++b) {
      std::unordered_map<Index, Positions> slots;
      for (Index p = 0; p < to.length(); ++p) {
        if (const Index id = to.row(b)[p]; id >= 0)
          slots.try_emplace(id, Positions{p, p + 1}).first->second.end = p + 1;
      }
      for (Index block = 0; block < blocks_; ++block) {
        Positions all{to.length(), 0};
        for (Index p = block * kBlock; p < std::min((block + 1) * kBlock, from.length()); ++p) {
          const auto slot = slots.find(from.row(b)[p]);
          if (slot == slots.end()) continue;
          all = {std::min(all.begin, slot->second.begin), std::max(all.end, slot->second.end)};
        }
        reach_.push_back(all);
      }
    }
  }

  Positions of(Index b, Index begin, Index n) const {
    const Positions* blocks_of = reach_.data() + (sequences_ == 1 ? 0 : b) * blocks_;
    Positions all{std::numeric_limits<Index>::max(), 0};
    for (Index block = begin / kBlock; block <= (begin + n - 1) / kBlock; ++block) {
      all = {std::min(all.begin, blocks_of[block].begin), std::max(all.end, blocks_of[block].end)};
    }
    return all;
  }

 private:
  Index sequences_, blocks_;
  std::vector<Positions> reach_;  // [1 or B][blocks]
};

class DocumentIds final : public MaskPart {
 public:
  DocumentIds(View<const Index, 2> q_ids, View<const Index, 2> k_ids, bool per_sequence)
      : q_(q_ids), k_(k_ids), keys_(q_, k_), queries_(k_, q_), per_sequence_(per_sequence) {}

  int verdict(const Pairs& t) const override {
    const Ends q = q_.ends(t.b, t.i0, t.ni), k = k_.ends(t.b, t.j0, t.nj);
    const bool one = q.smallest == q.largest && k.smallest == k.largest;
    if (q.largest < k.smallest || k.largest < q.smallest || std::min(q.largest, k.largest) < 0) return kTileEmpty;
    return one ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Index *q = q_.row(t.b) + t.i0, *k = k_.row(t.b) + t.j0;
    Index id = -1;  // of the previous key; neighbours mostly share an id
    std::uint32_t lanes = 0;
    for (Index j = 0; j < t.nj; ++j) {
      if (k[j] != id) {
        id = k[j];
        lanes = 0;
        for (Index i = 0; i < t.ni; ++i) lanes |= (q[i] == id && id >= 0 ? 1U : 0U) << i;
      }
      lane_masks[j] &= lanes;
    }
  }
  Positions keys(const Pairs& t) const override { return keys_.of(t.b, t.i0, t.ni); }
  Positions queries(const Pairs& t) const override { return queries_.of(t.b, t.j0, t.nj); }
  /// Searches block by block within what the queries reach.
  Index next_key(const Pairs& from) const override {
    const Positions live = keys(from);
    Pairs block = from;
    for (block.j0 = std::max(from.j0, live.begin); block.j0 < live.end; block.j0 += block.nj) {
      block.nj = std::min((block.j0 / kBlock + 1) * kBlock, live.end) - block.j0;
      if (verdict(block) != kTileEmpty) return block.j0;
    }
    return from.extent.kv_len;
  }
  Cost cost() const override { return Cost::kMemory; }
  std::string text(bool) const override {
    const auto shape = [&](const Ids& ids) {
      return (per_sequence_ ? std::to_string(ids.sequences()) + ", " : "") + std::to_string(ids.length());
    };
    return "document_ids[" + shape(q_) + (q_.length() == k_.length() ? "" : "; " + shape(k_)) + "]";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_side(q_, "queries", extent.batch, extent.q_len, function);
    check_side(k_, "keys", extent.batch, extent.kv_len, function);
  }

 private:
  void check_side(const Ids& ids, const char* side, Index batch, Index length, const char* function) const {
    qkv::check<ShapeError>(ids.length() == length && (!per_sequence_ || ids.sequences() == batch), function,
        "document_ids must have an id for each of the ", side, ": got ", ids.sequences(), " x ", ids.length(),
        " for batch ", batch, ", length ", length);
  }

  Ids q_, k_;
  BlockReach keys_, queries_;
  bool per_sequence_;
};

View<const Index, 2> one_row(IndexSpan ids) { return {ids.data(), {1, static_cast<Index>(ids.size())}}; }

}  // namespace

Mask Mask::document_ids(std::span<const Index> ids) { return document_ids(ids, ids); }
Mask Mask::document_ids(std::span<const Index> q_ids, std::span<const Index> k_ids) {
  return Mask(Node::of<DocumentIds>(one_row(q_ids), one_row(k_ids), /*per_sequence=*/false));
}
Mask Mask::document_ids(View<const Index, 2> ids) { return document_ids(ids, ids); }
Mask Mask::document_ids(View<const Index, 2> q_ids, View<const Index, 2> k_ids) {
  check<ShapeError>(q_ids.size(0) == k_ids.size(0), "Mask::document_ids",
      "ids of queries and keys must be for as many sequences: got ", q_ids, " and ", k_ids);
  return Mask(Node::of<DocumentIds>(q_ids, k_ids, /*per_sequence=*/true));
}

}  // namespace qkv::inline v0
