#include "attention/cache/cached.h"

#include <algorithm>

#include "core/check.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

Index sequence_of(const KeyValue::Parts& p, Index b) { return p.sequences == nullptr ? b : p.sequences[b]; }

/// The first of keys [begin, end) that query i is to see although others of them are dropped; -1: all are kept, or none.
Index key_among_dropped(const BoundMask& mask, Index b, Index h, Index i, Index begin, Index end) {
  constexpr Index piece = 128;
  std::uint32_t lane_masks[piece];
  Index kept = -1;
  bool dropped = false;
  for (Index j = begin; j < end;) {
    const Index next = mask_next_key(&mask, b, h, i, 1, j);
    dropped |= next > j;
    j = std::min(next, end);
    const Index nj = std::min(piece, end - j);
    if (nj == 0) break;
    const int answer = mask_tile(&mask, b, h, i, 1, j, nj, lane_masks);
    for (Index n = 0; n < nj; ++n) {
      const bool keeps = answer == kTilePartial ? (lane_masks[n] & 1U) != 0 : answer == kTileFull;
      if (keeps && kept < 0) kept = j + n;
      dropped |= !keeps;
    }
    if (kept >= 0 && dropped) return kept;
    j += nj;
  }
  return -1;
}

}  // namespace

Index first_held(const KeyValue& kv, Index b) {
  const KeyValue::Parts& p = kv.parts();
  return p.firsts != nullptr ? p.firsts[sequence_of(p, b)] : std::max<Index>(0, kv.length(b) - p.num_pages * p.page_size);
}

HeadKeys cached_head(const KeyValue& kv, Index b, Index g) {
  const KeyValue::Parts& p = kv.parts();
  const Index sequence = sequence_of(p, b);
  const Index page = p.pages == nullptr ? sequence : 0;
  const auto bytes = static_cast<Index>(storage_bytes(p.storage));
  const auto matrix = [&](const KeyValue::Matrix& m) {
    return KeyMatrix{static_cast<const std::byte*>(m.rows) + (g * m.head_stride + page * m.page_stride) * bytes,
                     m.scales == nullptr ? nullptr : m.scales + g * m.scale_head_stride + page * m.scale_page_stride,
                     m.page_stride, m.row_stride, m.scale_page_stride};
  };
  HeadKeys head{};
  head.type = stored_type(p.storage);
  head.k = matrix(p.k);
  head.v = matrix(p.v);
  head.pages = p.pages == nullptr ? nullptr : p.pages + sequence * p.pages_stride;
  head.num_pages = p.num_pages;
  head.page_rows = p.page_size;
  const Index pinned = std::min(p.pinned, kv.length(b));
  head.pinned = {0, pinned};
  head.held = {first_held(kv, b), kv.length(b)};
  return head;
}

void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options) {
  check<UnsupportedError>(options.empty_row != EmptyRow::kMean, function,
                          "EmptyRow::kMean, which reads masked values, is not computed on a cache");
  check<UnsupportedError>(!options.dropout.active(), function, "dropout while training is not computed on a cache");
  check<UnsupportedError>(
      options.capture.result == nullptr, function,
      "capture is not computed on a cache: look at a call on views of the same keys and values (KVCache::read)");
  const KeyValue::Parts& p = kv.parts();
  if (p.window == 0) return;
  for (Index b = 0; b < kv.batch(); ++b) {
    const Index wanted = std::max<Index>(0, kv.length(b) - q_len - (p.window - 1)), held = first_held(kv, b);
    check<OptionError>(held <= std::max(wanted, p.pinned), function,
                       "a ring must still hold the window of the first query, so there are at most max_append of them: got ",
                       q_len, " queries at length ", kv.length(b), ", window ", p.window, ", oldest key ", held);
  }
}

void check_ring_mask(const char* function, const KeyValue& kv, const BoundMask& mask) {
  const KeyValue::Parts& p = kv.parts();
  if (p.window == 0 || mask.node == nullptr) return;
  const Index heads = std::min(mask.extent.num_heads, mask_differs_by_head(mask) ? mask.extent.num_heads : 1);
  for (Index b = 0; b < mask.extent.batch; ++b) {
    const BoundMask own{mask.node, mask.extent_of(b)};
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < mask.extent.q_len; ++i) {
        const Index end = mask.shown->window_begin(b, mask.extent.q_len, i);
        if (p.pinned >= end || mask_verdict(own, b, h, i, 1, p.pinned, end - p.pinned) != kTilePartial) continue;
        const Index kept = key_among_dropped(own, b, h, i, p.pinned, end);
        rethrow_callback_error();
        check<OptionError>(
            kept < 0, function, "the mask needs key ", kept,
            ", which the ring no longer shows: raise KVCacheConfig::first or window, or cut the mask with & ",
            [&] { return mask.shown->text(false); }, ": got mask ", text_of(*mask.node), " for query ", i, " of sequence ", b,
            ", window ", p.window, ", first ", p.pinned);
      }
    }
  }
}

}  // namespace qkv::inline v0
