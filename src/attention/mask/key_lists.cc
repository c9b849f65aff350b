#include "attention/mask/key_lists.h"

#include <numeric>
#include <utility>

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

using Keys = std::span<const std::int32_t>;

/// The keys of `all` within [begin, end).
Keys within(Keys all, Index begin, Index end) {
  const auto first = std::lower_bound(all.begin(), all.end(), begin), last = std::lower_bound(first, all.end(), end);
  return {first, last};
}

}  // namespace

KeyLists::KeyLists(const View<const std::int32_t, 4>& index)
    : batch_(index.size(0)), heads_(index.size(1)), q_len_(index.size(2)), width_(index.size(3)) {
  constexpr const char* function = "Mask::keys";
  const auto rows = static_cast<std::size_t>(batch_ * heads_ * q_len_);
  keys_.reserve(rows * static_cast<std::size_t>(width_));
  begins_.reserve(rows + 1);
  begins_.push_back(0);
  reach_.resize(static_cast<std::size_t>(batch_ * q_len_));
  for (Index b = 0; b < batch_; ++b) {
    last_.push_back(-1);
    for (Index h = 0; h < heads_; ++h) {
      for (Index i = 0; i < q_len_; ++i) {
        for (Index n = 0; n < width_; ++n) {
          const std::int32_t key = index(b, h, i, n);
          qkv::check<OptionError>(key >= -1, function, "a key must be at least 0, or -1 for none: got ", key, " at [",
              b, ", ", h, ", ", i, ", ", n, "]");
          if (key >= 0) keys_.push_back(key);
        }
        const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(begins_.back());
        if (!std::is_sorted(begin, keys_.end())) std::sort(begin, keys_.end());
        const auto twice = std::adjacent_find(begin, keys_.end());
        qkv::check<OptionError>(twice == keys_.end(), function, "a row must list a key once: got ",
            twice == keys_.end() ? -1 : *twice, " twice for query ", i, " of head ", h, " of sequence ", b);
        if (begin != keys_.end()) {
          Reach& reach = reach_[static_cast<std::size_t>(b * q_len_ + i)];
          reach = {std::min(reach.first, *begin), std::max(reach.last, keys_.back())};
          last_.back() = std::max(last_.back(), keys_.back());
        }
        longest_ = std::max(longest_, static_cast<Index>(keys_.end() - begin));
        begins_.push_back(keys_.size());
      }
    }
  }
}

Index KeyLists::block_heads(const Mask::Node& whole, Index group, Index num_heads) const {
  for (const MaskPartPtr& part : whole.parts) {
    if (part.get() != this && part->differs_by_head()) return 1;
  }
  return std::max<Index>(1, std::gcd(group, num_heads / heads_));
}

int KeyLists::verdict(const Pairs& t) const {
  bool any = false, every = true;
  for (Index i = t.i0; i < t.i0 + t.ni; ++i) {
    const auto count = static_cast<Index>(within(row(t.b, t.h, t.extent.num_heads, i), t.j0, t.j0 + t.nj).size());
    any |= count > 0;
    every &= count == t.nj;
    if (any && !every) return kTilePartial;
  }
  return any ? kTileFull : kTileEmpty;
}

void KeyLists::fill(const Pairs& t, std::uint32_t* lane_masks) const {
  constexpr Index piece = 128;
  for (Index begin = 0; begin < t.nj; begin += piece) {
    const Index count = std::min(piece, t.nj - begin);
    std::uint32_t kept[piece] = {};
    for (Index lane = 0; lane < t.ni; ++lane) {
      const Keys all = row(t.b, t.h, t.extent.num_heads, t.i0 + lane);
      for (const std::int32_t key : within(all, t.j0 + begin, t.j0 + begin + count))
        kept[key - t.j0 - begin] |= 1U << lane;
    }
    for (Index j = 0; j < count; ++j) lane_masks[begin + j] &= kept[j];
  }
}

Positions KeyLists::keys(const Pairs& t) const {
  const Reach* reach = reach_.data() + (batch_ == 1 ? 0 : t.b) * q_len_;
  Reach all;
  for (Index i = t.i0; i < t.i0 + t.ni; ++i) {
    all = {std::min(all.first, reach[i].first), std::max(all.last, reach[i].last)};
  }
  return {std::min<Index>(all.first, t.extent.kv_len), Index{all.last} + 1};
}

Index KeyLists::next_key(const Pairs& from) const {
  Index next = from.extent.kv_len;
  for (Index i = from.i0; i < from.i0 + from.ni && next > from.j0; ++i) {
    const Keys rest = within(row(from.b, from.h, from.extent.num_heads, i), from.j0, next);
    if (!rest.empty()) next = rest.front();
  }
  return next;
}

std::string KeyLists::text(bool) const {
  const Index sizes[] = {batch_, heads_, q_len_, width_};
  return "keys" + shape_text(sizes, 4);
}

void KeyLists::check(const MaskExtent& extent, bool, const char* function) const {
  const bool heads_fit = heads_ >= 1 && extent.num_heads % heads_ == 0;
  qkv::check<ShapeError>((batch_ == 1 || batch_ == extent.batch) && heads_fit && q_len_ == extent.q_len, function,
      "lists of keys must be [B|1, H|Hkv|1, Tq, k]: got ", [&] { return text(false); }, " for B ", extent.batch, ", H ",
      extent.num_heads, ", Tq ", extent.q_len);
  for (Index b = 0; b < batch_; ++b) {
    if (batch_ == 1 || extent.only < 0 || extent.only == b) check_length(b, extent.kv_len, function);
  }
}

void KeyLists::check_length(Index b, Index length, const char* function) const {
  const std::int32_t last = last_[batch_ == 1 ? 0 : static_cast<std::size_t>(b)];
  qkv::check<OptionError>(last < length, function, "a listed key must be below ", length, ", the number of keys: got ",
      last, " in sequence ", b);
}

const KeyLists* key_lists_of(const Mask::Node* node) {
  const KeyLists* only = nullptr;
  if (node == nullptr) return only;
  for (const MaskPartPtr& part : node->parts) {
    const auto* lists = dynamic_cast<const KeyLists*>(part.get());
    if (lists != nullptr && only != nullptr) return nullptr;
    if (lists != nullptr) only = lists;
  }
  return only;
}

Mask Mask::keys(View<const std::int32_t, 4> index) { return Mask(Node::of<KeyLists>(index)); }

}  // namespace qkv::inline v0
