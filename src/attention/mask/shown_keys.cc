#include "attention/mask/shown_keys.h"

namespace qkv::inline v0 {

int ShownKeys::verdict(const Pairs& t) const {
  const Index end = t.j0 + t.nj;
  if (t.j0 >= pinned_ && end <= first(t)) return kTileEmpty;
  const Index last_window = window_begin(t.b, t.extent.q_len, t.i0 + t.ni - 1);
  return std::max(t.j0, pinned_) >= std::min(end, last_window) ? kTileFull : kTilePartial;
}

void ShownKeys::fill(const Pairs& t, std::uint32_t* lane_masks) const {
  Index seeing = 0;  // the number of leading queries whose window has key j
  for (Index j = 0; j < t.nj; ++j) {
    const Index key = t.j0 + j;
    while (seeing < t.ni && window_begin(t.b, t.extent.q_len, t.i0 + seeing) <= key) ++seeing;
    if (key >= pinned_) lane_masks[j] &= bit_range(0, seeing);
  }
}

std::string ShownKeys::text(bool) const {
  const KeyValue::Parts& p = kv_.parts();
  const std::string window = "Mask::window(" + std::to_string(p.window - 1) + ", -1, Align::kBottomRight)";
  return p.pinned == 0 ? window : "(" + window + " | Mask::first(" + std::to_string(p.pinned) + "))";
}

}  // namespace qkv::inline v0
