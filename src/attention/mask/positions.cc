// Leaves of single positions: global rows and columns, dilation.
#include "attention/mask/part.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

/// keep = i, or j, is one of some positions, ascending, each once. A search takes O(log n) of their number, which is
/// small.
class Global final : public MaskPart {
 public:
  Global(IndexSpan positions, bool on_keys) : positions_(positions.begin(), positions.end()), on_keys_(on_keys) {
    std::sort(positions_.begin(), positions_.end());
    positions_.erase(std::unique(positions_.begin(), positions_.end()), positions_.end());
    if (positions_.empty()) return;
    for (const Index p : {positions_.front(), positions_.back()})
      qkv::check<OptionError>(p >= 0 && p < kFar, "Mask", "a global row or column must be a position: got ", p);
  }

  int verdict(const Pairs& t) const override { return on_keys_ ? verdict(t.j0, t.nj) : verdict(t.i0, t.ni); }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const auto holds = [&](Index p) { return std::binary_search(positions_.begin(), positions_.end(), p); };
    std::uint32_t lanes = 0;
    for (Index i = 0; i < t.ni && !on_keys_; ++i) lanes |= holds(t.i0 + i) ? 1U << i : 0U;
    for (Index j = 0; j < t.nj; ++j) lane_masks[j] &= !on_keys_ ? lanes : holds(t.j0 + j) ? ~0U : 0U;
  }
  Positions keys(const Pairs& t) const override {
    if (on_keys_) return {front(), end()};
    return verdict(t) == kTileEmpty ? Positions{0, 0} : MaskPart::keys(t);
  }
  Index next_key(const Pairs& from) const override {
    if (!on_keys_) return MaskPart::next_key(from);
    const auto found = std::lower_bound(positions_.begin(), positions_.end(), from.j0);
    return found == positions_.end() ? from.extent.kv_len : *found;
  }
  std::string text(bool) const override {
    return (on_keys_ ? "global_columns[" : "global_rows[") + std::to_string(positions_.size()) + "]";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    const Index length = on_keys_ ? extent.kv_len : extent.q_len;
    qkv::check<OptionError>(end() <= length, function, on_keys_ ? "global columns" : "global rows",
        " must be positions below ", length, ": got ", end() - 1);
  }

 private:
  Index front() const { return positions_.empty() ? 0 : positions_.front(); }
  Index end() const { return positions_.empty() ? 0 : positions_.back() + 1; }
  int verdict(Index begin, Index count) const {
    const auto below = [&](Index p) {
      return std::lower_bound(positions_.begin(), positions_.end(), p) - positions_.begin();
    };
    const Index inside = below(begin + count) - below(begin);
    return inside == count ? kTileFull : inside == 0 ? kTileEmpty : kTilePartial;
  }

  std::vector<Index> positions_;
  bool on_keys_;
};

/// keep = (j - i - offset) % step == 0
class Dilated final : public MaskPart {
 public:
  Dilated(Index step, Align align) : step_(std::min(step, kFar)), align_(align) {}

  int verdict(const Pairs& t) const override {
    if (step_ == 1) return kTileFull;
    const Index smallest = from_first(t, t.j0) - (t.ni - 1), largest = from_first(t, t.j0 + t.nj - 1);
    const Index next = smallest + floor_mod(-smallest, step_);  // the first multiple
    if (next > largest) return kTileEmpty;
    return smallest == largest ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    std::uint32_t every = 0;  // lanes 0, step, 2 step, ...
    for (Index lane = 0; lane < 32; lane += step_) every |= 1U << lane;
    for (Index j = 0; j < t.nj; ++j) {
      const Index first = floor_mod(from_first(t, t.j0 + j), step_);
      lane_masks[j] &= first < 32 ? every << first : 0U;
    }
  }
  std::string text(bool) const override { return "dilated(" + std::to_string(step_) + align_suffix(align_) + ")"; }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_square(function, "dilated", align_, extent.q_len, extent.kv_len);
  }

 private:
  /// j - i - offset for the tile's first query; one less for each lane.
  Index from_first(const Pairs& t, Index j) const {
    return j - t.i0 - alignment_offset(align_, t.extent.q_len, t.extent.kv_len);
  }

  Index step_;
  Align align_;
};

}  // namespace

Mask Mask::global_rows(std::span<const Index> rows) { return Mask(Node::of<Global>(rows, false)); }
Mask Mask::global_columns(std::span<const Index> columns) { return Mask(Node::of<Global>(columns, true)); }
Mask Mask::dilated(Index step, Align align) {
  check<OptionError>(step >= 1, "Mask::dilated", "step must be at least 1: got ", step);
  return Mask(Node::of<Dilated>(step, align));
}

}  // namespace qkv::inline v0
