// How parts are combined: verdicts by minimum and maximum, lane masks by & and |, keys by intersection and hull.
#include <algorithm>

#include "attention/mask/node.h"
#include "attention/mask/summary.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

int verdict_of(const Mask::Node& node, const Pairs& pairs) {
  int answer = kTileFull;
  for (const MaskPartPtr& part : node.parts) {
    answer = std::min(answer, part->verdict(pairs));
    if (answer == kTileEmpty) break;
  }
  return answer;
}

void fill_of(const Mask::Node& node, const Pairs& pairs, std::uint32_t* lane_masks) {
  for (const MaskPartPtr& part : node.parts) {
    if (part->verdict(pairs) == kTilePartial) part->fill(pairs, lane_masks);
  }
}

/// MaskPart::keys or queries: what all parts leave of [0, length).
using RangeOf = Positions (MaskPart::*)(const Pairs&) const;
Positions range_of(const Mask::Node& node, const Pairs& pairs, Index length, RangeOf of) {
  Positions live{0, length};
  for (const MaskPartPtr& part : node.parts) {
    const Positions some = (*part.*of)(pairs);
    live = {std::max(live.begin, some.begin), std::min(live.end, some.end)};
  }
  return live;
}

/// Parts move the key forward until none does.
Index next_key_of(const Mask::Node& node, Pairs from) {
  for (Index before = -1; before != from.j0 && from.j0 < from.extent.kv_len;) {
    before = from.j0;
    for (const MaskPartPtr& part : node.parts) from.j0 = std::max(from.j0, part->next_key(from));
  }
  return std::min(from.j0, from.extent.kv_len);
}

/// Full, empty or partial, from the lane masks; lanes past ni do not count.
int verdict_of_bits(const Pairs& t, const std::uint32_t* lane_masks) {
  std::uint32_t any = 0, every = ~0U;
  for (Index j = 0; j < t.nj; ++j) {
    any |= lane_masks[j];
    every &= lane_masks[j];
  }
  const std::uint32_t all = bit_range(0, t.ni);
  return (every & all) == all ? kTileFull : (any & all) != 0 ? kTilePartial : kTileEmpty;
}

/// keep = any alternative keeps.
class Union final : public MaskPart {
 public:
  explicit Union(std::vector<Mask::Node> alternatives) : alternatives_(std::move(alternatives)) {
    const auto cost_of = [](const Mask::Node& node) { return node.parts.back()->cost(); };
    std::stable_sort(alternatives_.begin(), alternatives_.end(),
        [&](const Mask::Node& a, const Mask::Node& b) { return cost_of(a) < cost_of(b); });
    cost_ = cost_of(alternatives_.back());
  }

  const std::vector<Mask::Node>& alternatives() const { return alternatives_; }

  int verdict(const Pairs& t) const override {
    int answer = kTileEmpty;
    for (const Mask::Node& node : alternatives_) {
      answer = std::max(answer, verdict_of(node, t));
      if (answer == kTileFull) break;
    }
    return answer;
  }

  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    constexpr Index piece = 128;
    for (Index begin = 0; begin < t.nj; begin += piece) {
      Pairs part = t;
      part.j0 += begin;
      part.nj = std::min(piece, t.nj - begin);
      fill_piece(part, lane_masks + begin);
    }
  }

  Positions keys(const Pairs& rows) const override { return hull_of(rows, rows.extent.kv_len, &MaskPart::keys); }
  Positions queries(const Pairs& columns) const override {
    return hull_of(columns, columns.extent.q_len, &MaskPart::queries);
  }
  Index next_key(const Pairs& from) const override {
    Index next = from.extent.kv_len;
    for (const Mask::Node& node : alternatives_) {
      next = std::min(next, next_key_of(node, from));
      if (next == from.j0) break;
    }
    return next;
  }

  bool differs_by_head() const override {
    return std::ranges::any_of(alternatives_, [](const Mask::Node& node) {
      return std::ranges::any_of(node.parts, [](const MaskPartPtr& part) { return part->differs_by_head(); });
    });
  }
  void visit_dense(const std::function<void(const DenseLeaf&)>& visit) const override {
    for (const Mask::Node& node : alternatives_) each_dense(&node, visit);
  }
  Cost cost() const override { return cost_; }

  std::string text(bool inside) const override {
    std::string all;
    for (const Mask::Node& node : alternatives_) all += (all.empty() ? "" : " | ") + text_of(node);
    return inside ? "(" + all + ")" : all;
  }
  void check(const MaskExtent& extent, bool key_lengths, const char* function) const override {
    for (const Mask::Node& node : alternatives_) check_parts(node, extent, key_lengths, function);
  }

  /// Checks the parts of one conjunction; `key_lengths`: something around it cuts the keys.
  static void check_parts(const Mask::Node& node, const MaskExtent& extent, bool key_lengths, const char* function) {
    for (const MaskPartPtr& part : node.parts) key_lengths |= part->holds_key_lengths();
    for (const MaskPartPtr& part : node.parts) part->check(extent, key_lengths, function);
  }

 private:
  /// The keys that the alternatives cover, and those between.
  Positions hull_of(const Pairs& pairs, Index length, RangeOf of) const {
    Positions all{0, 0};
    for (const Mask::Node& node : alternatives_) {
      const Positions some = range_of(node, pairs, length, of);
      if (some.begin >= some.end) continue;
      all = all.begin >= all.end ? some : Positions{std::min(all.begin, some.begin), std::max(all.end, some.end)};
    }
    return all;
  }
  /// Each alternative is asked only about bits that are wanted and that none before has given.
  void fill_piece(const Pairs& t, std::uint32_t* lane_masks) const {
    std::uint32_t kept[128] = {}, asked[128];
    for (const Mask::Node& node : alternatives_) {
      const int answer = verdict_of(node, t);
      if (answer == kTileEmpty) continue;
      if (answer == kTileFull) return;
      for (Index j = 0; j < t.nj; ++j) asked[j] = lane_masks[j] & ~kept[j];
      fill_of(node, t, asked);
      for (Index j = 0; j < t.nj; ++j) kept[j] |= asked[j];
    }
    std::copy_n(kept, t.nj, lane_masks);
  }

  std::vector<Mask::Node> alternatives_;
  Cost cost_;
};

/// The alternatives of a node that is one union; the node itself otherwise.
std::vector<Mask::Node> alternatives_of(const Mask::Node& node) {
  const auto* only = node.parts.size() == 1 ? dynamic_cast<const Union*>(node.parts[0].get()) : nullptr;
  return only == nullptr ? std::vector<Mask::Node>{node} : only->alternatives();
}

}  // namespace

MaskPart::~MaskPart() = default;

Mask::Mask() = default;
Mask::~Mask() = default;
Mask::Mask(const Mask&) = default;
Mask& Mask::operator=(const Mask&) = default;
Mask::Mask(Mask&&) noexcept = default;
Mask& Mask::operator=(Mask&&) noexcept = default;
Mask::Mask(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

Mask operator&(const Mask& a, const Mask& b) {
  if (a.node_ == nullptr) return b;
  if (b.node_ == nullptr) return a;
  auto node = std::make_shared<Mask::Node>(*a.node_);
  node->parts.insert(node->parts.end(), b.node_->parts.begin(), b.node_->parts.end());
  std::stable_sort(node->parts.begin(), node->parts.end(),
      [](const MaskPartPtr& x, const MaskPartPtr& y) { return x->cost() < y->cost(); });
  return Mask(std::move(node));
}

Mask operator|(const Mask& a, const Mask& b) {
  if (a.node_ == nullptr || b.node_ == nullptr) return Mask();
  std::vector<Mask::Node> alternatives = alternatives_of(*a.node_);
  for (Mask::Node& more : alternatives_of(*b.node_)) alternatives.push_back(std::move(more));
  return Mask(Mask::Node::of<Union>(std::move(alternatives)));
}

std::string Mask::describe() const { return node_ == nullptr ? "everything" : text_of(*node_); }

std::string align_suffix(Align align) {
  if (align == Align::kTopLeft) return ", top-left";
  return align == Align::kBottomRight ? ", bottom-right" : "";
}

void check_square(const char* function, const char* what, Align align, Index q_len, Index kv_len) {
  check<OptionError>(align != Align::kSquare || q_len == kv_len, function, what,
      "() alone needs Tq == Tk: pass Align::kBottomRight (last query sees last key) or Align::kTopLeft (query 0 sees "
      "key 0): got Tq ",
      q_len, ", Tk ", kv_len);
}

void check_one_each(const char* function, const char* what, std::size_t values, Index batch) {
  check<ShapeError>(static_cast<Index>(values) == batch, function, what, " takes one value per sequence: got ", values,
      " for batch ", batch);
}

void check_mask(const Mask& mask, const MaskExtent& extent, const char* function) {
  if (mask.node() != nullptr) Union::check_parts(*mask.node(), extent, false, function);
}

std::string text_of(const Mask::Node& node) {
  std::string all;
  for (const MaskPartPtr& part : node.parts) all += (all.empty() ? "" : " & ") + part->text(node.parts.size() > 1);
  return all;
}

bool mask_keeps(const BoundMask& mask, Index b, Index h, Index i, Index j) {
  std::uint32_t word = 0;
  return mask_tile(&mask, b, h, i, 1, j, 1, &word) == kTileFull;
}

bool mask_differs_by_head(const BoundMask& mask) {
  return mask.node != nullptr &&
         std::ranges::any_of(mask.node->parts, [](const MaskPartPtr& part) { return part->differs_by_head(); });
}

int mask_verdict(const BoundMask& mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj) {
  const Pairs pairs{mask.extent_of(b), b, h, i0, ni, j0, nj};
  const int answer = mask.shown == nullptr ? kTileFull : mask.shown->verdict(pairs);
  return answer == kTileEmpty || mask.node == nullptr ? answer : std::min(answer, verdict_of(*mask.node, pairs));
}

int mask_tile(const void* bound, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* lane_masks) {
  const BoundMask& mask = *static_cast<const BoundMask*>(bound);
  const int answer = mask_verdict(mask, b, h, i0, ni, j0, nj);
  if (answer != kTilePartial) return answer;
  const Pairs pairs{mask.extent_of(b), b, h, i0, ni, j0, nj};
  std::fill_n(lane_masks, nj, bit_range(0, ni));
  if (mask.shown != nullptr && mask.shown->verdict(pairs) == kTilePartial) mask.shown->fill(pairs, lane_masks);
  if (mask.node != nullptr) fill_of(*mask.node, pairs, lane_masks);
  return verdict_of_bits(pairs, lane_masks);
}

void mask_key_range(const void* bound, Index b, Index h, Index i0, Index ni, Index* begin, Index* end) {
  const BoundMask& mask = *static_cast<const BoundMask*>(bound);
  const MaskExtent extent = mask.extent_of(b);
  const Pairs rows{extent, b, h, i0, ni, 0, extent.kv_len};
  const Positions live =
      mask.node == nullptr ? Positions{0, extent.kv_len} : range_of(*mask.node, rows, extent.kv_len, &MaskPart::keys);
  *end = std::max(live.end, Index{0});
  *begin = std::min(mask.shown == nullptr ? live.begin : std::max(live.begin, mask.shown->keys(rows).begin), *end);
}

Index mask_next_key(const void* bound, Index b, Index h, Index i0, Index ni, Index key) {
  const BoundMask& mask = *static_cast<const BoundMask*>(bound);
  Pairs from{mask.extent_of(b), b, h, i0, ni, key, 1};
  for (Index before = -1; before != from.j0;) {
    before = from.j0;
    if (mask.shown != nullptr) from.j0 = mask.shown->next_key(from);
    from.j0 = mask.node == nullptr ? std::min(from.j0, from.extent.kv_len) : next_key_of(*mask.node, from);
  }
  return from.j0;
}

bool mask_meets(const BoundMask& mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj) {
  if (mask.node == nullptr) return true;
  const Pairs pairs{mask.extent, b, h, i0, ni, j0, nj};
  const Positions live = range_of(*mask.node, pairs, mask.extent.q_len, &MaskPart::queries);
  return i0 < live.end && i0 + ni > live.begin && next_key_of(*mask.node, pairs) < j0 + nj;
}

bool mask_may_keep(
    const Mask& mask, const std::array<Index, 4>& sizes, Index q_begin, Index q_end, Index k_begin, Index k_end) {
  const BoundMask bound{mask.node(), {sizes[0], sizes[1], sizes[2], sizes[3]}};
  check_mask(mask, bound.extent, "mask_may_keep");
  q_begin = std::max<Index>(q_begin, 0), q_end = std::min(q_end, sizes[2]);
  k_begin = std::max<Index>(k_begin, 0), k_end = std::min(k_end, sizes[3]);
  if (q_begin >= q_end || k_begin >= k_end) return false;
  if (bound.keeps_all()) return true;
  const Index heads = mask_differs_by_head(bound) ? sizes[1] : std::min<Index>(sizes[1], 1);
  for (Index b = 0; b < sizes[0] && heads > 0; ++b) {
    Index live_begin, live_end;
    mask_key_range(&bound, b, 0, q_begin, q_end - q_begin, &live_begin, &live_end);
    if (k_end <= live_begin || k_begin >= live_end) continue;
    for (Index h = 0; h < heads; ++h) {
      if (mask_verdict(bound, b, h, q_begin, q_end - q_begin, k_begin, k_end - k_begin) != kTileEmpty) return true;
    }
  }
  return false;
}

namespace {

/// Queries [i0, i0 + keep's rows), at most 32, of one head.
void write_rows(const BoundMask& bound, Index b, Index h, Index i0, const View<std::uint8_t, 2>& keep) {
  constexpr Index keys = 128;
  std::uint32_t lane_masks[keys];
  const Index ni = keep.size(0), kv_len = keep.size(1);
  for (Index j0 = 0; j0 < kv_len; j0 += keys) {
    const Index nj = std::min(keys, kv_len - j0);
    const int answer = mask_tile(&bound, b, h, i0, ni, j0, nj, lane_masks);
    for (Index j = 0; j < nj; ++j) {
      const std::uint32_t word = answer == kTilePartial ? lane_masks[j] : answer == kTileFull ? ~0U : 0U;
      for (Index i = 0; i < ni; ++i) keep(i, j0 + j) = static_cast<std::uint8_t>(word >> i & 1U);
    }
  }
  rethrow_callback_error();
}

}  // namespace

void mask_to_dense(const Mask& mask, View<std::uint8_t, 4> keep) {
  const BoundMask bound{mask.node(), {keep.size(0), keep.size(1), keep.size(2), keep.size(3)}};
  check_mask(mask, bound.extent, "mask_to_dense");
  check_written("mask_to_dense", {"keep", keep});
  constexpr Index lanes = 32;
  for (Index b = 0; b < keep.size(0); ++b) {
    for (Index h = 0; h < keep.size(1); ++h) {
      for (Index i0 = 0; i0 < keep.size(2); i0 += lanes) {
        const Index ni = std::min(lanes, keep.size(2) - i0);
        write_rows(bound, b, h, i0, {&keep(b, h, i0, 0), {ni, keep.size(3)}, {keep.stride(2), keep.stride(3)}});
      }
    }
  }
}

void mask_rows(const Mask& mask, const std::array<Index, 4>& sizes, Index b, Index h, std::span<const Index> rows,
    View<std::uint8_t, 2> keep) {
  const BoundMask bound{mask.node(), {sizes[0], sizes[1], sizes[2], sizes[3]}};
  check_mask(mask, bound.extent, "mask_rows");
  check<ShapeError>(keep.size(0) == static_cast<Index>(rows.size()) && keep.size(1) == sizes[3], "mask_rows",
      "keep must be [n, Tk] = [", rows.size(), ", ", sizes[3], "]: got ", keep);
  check_written("mask_rows", {"keep", keep});
  check<ShapeError>(
      b >= 0 && b < sizes[0] && h >= 0 && h < sizes[1], "mask_rows", "there is no sequence ", b, " or head ", h);
  for (Index n = 0; n < keep.size(0); ++n) {
    const Index i = rows[static_cast<std::size_t>(n)];
    check<ShapeError>(i >= 0 && i < sizes[2], "mask_rows", "rows must lie in 0..", sizes[2] - 1, ": got ", i);
    write_rows(bound, b, h, i, keep.sliced(0, n, n + 1));
  }
}

}  // namespace qkv::inline v0
