// The keys that a cache shows, as a part of the masks of calls on it: a ring hides what lies before a query's window,
// but for the keys that it pins.
#pragma once

#include "attention/mask/part.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

/// keep = j < pinned or j is in the window of query i. Refers to the cache.
class ShownKeys final : public MaskPart {
 public:
  explicit ShownKeys(const KeyValue& kv) : kv_(kv), pinned_(kv.parts().pinned) {}

  /// Tk of sequence b.
  Index kv_len(Index b) const { return kv_.length(b); }
  bool all() const { return !kv_.hides_keys(); }
  /// The first key of query i's window; it grows with i.
  Index window_begin(Index b, Index q_len, Index i) const {
    const KeyValue::Parts& p = kv_.parts();
    return p.window == 0 ? 0 : std::max<Index>(0, kv_.length(b) - q_len + i - (p.window - 1));
  }

  int verdict(const Pairs& t) const override;
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override;
  Positions keys(const Pairs& rows) const override { return {pinned_ > 0 ? 0 : first(rows), rows.extent.kv_len}; }
  Index next_key(const Pairs& from) const override {
    return from.j0 < pinned_ ? from.j0 : std::max(from.j0, first(from));
  }
  /// The mask that shows what a ring shows.
  std::string text(bool inside) const override;
  void check(const MaskExtent&, bool, const char*) const override {}  // cache/cached.h

 private:
  /// The first key of the first query's window.
  Index first(const Pairs& t) const { return window_begin(t.b, t.extent.q_len, t.i0); }

  const KeyValue& kv_;
  Index pinned_;
};

}  // namespace qkv::inline v0
