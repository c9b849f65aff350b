// Leaves decided by the query alone or by the key alone: lengths, starts, prefix, first, global rows and columns.
#include "attention/mask/leaves.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

struct BoundWords {
  const char* name;
  bool on_keys, below;  // which axis; keeps positions below the bound, or from it on
};
constexpr BoundWords kBoundWords[] = {
    {"key_lengths", true, true}, {"key_starts", true, false}, {"query_lengths", false, true}, {"prefix", true, true}};

/// keep = position < bounds[b], or position >= bounds[b].
class Bound final : public MaskPart {
 public:
  Bound(BoundKind kind, IndexSpan bounds)
      : kind_(kind), words_(kBoundWords[static_cast<std::size_t>(kind)]), bounds_(bounds.begin(), bounds.end()) {}

  int verdict(const Pairs& t) const override {
    return words_.on_keys ? verdict_within(t.j0, t.nj, kept(t)) : verdict_within(t.i0, t.ni, kept(t));
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Positions live = kept(t);
    if (words_.on_keys) {
      keep_keys(t, live, lane_masks);
    } else {
      keep_lanes(t, bit_range(live.begin - t.i0, live.end - t.i0), lane_masks);
    }
  }
  Positions keys(const Pairs& t) const override {
    if (words_.on_keys) return kept(t);
    return verdict_within(t.i0, t.ni, kept(t)) == kTileEmpty ? Positions{0, 0} : MaskPart::keys(t);
  }
  Positions queries(const Pairs& t) const override {
    if (!words_.on_keys) return kept(t);
    return verdict_within(t.j0, t.nj, kept(t)) == kTileEmpty ? Positions{0, 0} : MaskPart::queries(t);
  }
  bool holds_key_lengths() const override { return kind_ == BoundKind::kKeyLengths; }
  std::string text(bool) const override { return words_.name + ("[" + std::to_string(bounds_.size()) + "]"); }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_one_each(function, words_.name, bounds_.size(), extent.batch);
    const Index length = length_of(extent);
    for (Index b = 0; b < extent.batch; ++b) {
      if (extent.only >= 0 && b != extent.only) continue;
      const Index bound = bounds_[static_cast<std::size_t>(b)];
      qkv::check<OptionError>(bound >= 0 && bound <= length, function, "each value of ", words_.name, " must be in 0..",
                              words_.on_keys ? "Tk" : "Tq", ": got ", bound, " for ", length);
    }
  }

 private:
  Index length_of(const MaskExtent& extent) const { return words_.on_keys ? extent.kv_len : extent.q_len; }
  Positions kept(const Pairs& t) const {
    const Index bound = bounds_[static_cast<std::size_t>(t.b)];
    return words_.below ? Positions{0, bound} : Positions{bound, length_of(t.extent)};
  }

  BoundKind kind_;
  BoundWords words_;
  std::vector<Index> bounds_;  // [B]
};

/// keep = j < n
class First final : public MaskPart {
 public:
  explicit First(Index n) : n_(n) {}

  int verdict(const Pairs& t) const override { return verdict_within(t.j0, t.nj, {0, n_}); }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override { keep_keys(t, {0, n_}, lane_masks); }
  Positions keys(const Pairs&) const override { return {0, n_}; }
  Positions queries(const Pairs& t) const override { return t.j0 < n_ ? MaskPart::queries(t) : Positions{0, 0}; }
  std::string text(bool) const override { return "first(" + std::to_string(n_) + ")"; }
  void check(const MaskExtent&, bool, const char*) const override {}

 private:
  Index n_;
};

/// Positions in ascending order, each once. Look-ups take O(log n) of their number, which is small.
class PositionSet {
 public:
  explicit PositionSet(IndexSpan positions) : positions_(positions.begin(), positions.end()) {
    std::ranges::sort(positions_);
    positions_.erase(std::ranges::unique(positions_).begin(), positions_.end());
    for (const Index p : {front(), positions_.empty() ? 0 : positions_.back()}) {
      check<OptionError>(p >= 0 && p < kFar, "Mask", "a global row or column must be a position: got ", p);
    }
  }

  Index size() const { return static_cast<Index>(positions_.size()); }
  Index front() const { return positions_.empty() ? 0 : positions_.front(); }
  /// One past the largest position.
  Index end() const { return positions_.empty() ? 0 : positions_.back() + 1; }
  bool holds(Index p) const { return std::ranges::binary_search(positions_, p); }
  /// The smallest position from p on; end() or more: none.
  Index next(Index p) const {
    const auto found = std::ranges::lower_bound(positions_, p);
    return found == positions_.end() ? std::max(p, end()) : *found;
  }
  int verdict(Index begin, Index n) const {
    const Index inside = below(begin + n) - below(begin);
    return inside == n ? kTileFull : inside == 0 ? kTileEmpty : kTilePartial;
  }

 private:
  Index below(Index p) const { return std::ranges::lower_bound(positions_, p) - positions_.begin(); }

  std::vector<Index> positions_;
};

void check_positions(const PositionSet& set, Index length, const char* what, const char* function) {
  check<OptionError>(set.end() <= length, function, what, " must be positions below ", length, ": got ", set.end() - 1);
}

/// keep = i is in the set
class Rows final : public MaskPart {
 public:
  explicit Rows(IndexSpan positions) : set_(positions) {}

  int verdict(const Pairs& t) const override { return set_.verdict(t.i0, t.ni); }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    std::uint32_t lanes = 0;
    for (Index i = 0; i < t.ni; ++i) lanes |= set_.holds(t.i0 + i) ? 1U << i : 0U;
    keep_lanes(t, lanes, lane_masks);
  }
  Positions keys(const Pairs& t) const override {
    return set_.verdict(t.i0, t.ni) == kTileEmpty ? Positions{0, 0} : MaskPart::keys(t);
  }
  Positions queries(const Pairs&) const override { return {set_.front(), set_.end()}; }
  std::string text(bool) const override { return "global_rows[" + std::to_string(set_.size()) + "]"; }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_positions(set_, extent.q_len, "global rows", function);
  }

 private:
  PositionSet set_;
};

/// keep = j is in the set
class Columns final : public MaskPart {
 public:
  explicit Columns(IndexSpan positions) : set_(positions) {}

  int verdict(const Pairs& t) const override { return set_.verdict(t.j0, t.nj); }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    for (Index j = 0; j < t.nj; ++j) lane_masks[j] = set_.holds(t.j0 + j) ? lane_masks[j] : 0U;
  }
  Positions keys(const Pairs&) const override { return {set_.front(), set_.end()}; }
  Positions queries(const Pairs& t) const override {
    return set_.verdict(t.j0, t.nj) == kTileEmpty ? Positions{0, 0} : MaskPart::queries(t);
  }
  Index next_key(const Pairs& from) const override {
    const Index next = set_.next(from.j0);
    return next < set_.end() ? next : from.extent.kv_len;
  }
  std::string text(bool) const override { return "global_columns[" + std::to_string(set_.size()) + "]"; }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_positions(set_, extent.kv_len, "global columns", function);
  }

 private:
  PositionSet set_;
};

}  // namespace

MaskPartPtr make_bound(BoundKind kind, IndexSpan bounds) { return std::make_shared<Bound>(kind, bounds); }
MaskPartPtr make_first(Index n) { return std::make_shared<First>(n); }
MaskPartPtr make_rows(IndexSpan positions) { return std::make_shared<Rows>(positions); }
MaskPartPtr make_columns(IndexSpan positions) { return std::make_shared<Columns>(positions); }

}  // namespace qkv::inline v0
