#include "attention/cached.h"

#include <algorithm>

#include "core/check.h"

namespace qkv {
inline namespace v0 {
namespace {

constexpr Index kOnePage = 0;  // the table of a sequence that is one page

Index sequence_of(const KeyValue::Parts& p, Index b) { return p.sequences == nullptr ? b : p.sequences[b]; }

/// The first key that query i may see, as far as the cache says; it grows with i.
Index first_seen(const KeyValue& kv, Index b, Index q_len, Index i) {
  const KeyValue::Parts& p = kv.parts();
  return p.window == 0 ? p.begin : std::max(p.begin, kv.length(b) - q_len + i - (p.window - 1));
}

/// Clears the bits of queries that stand too far behind a key.
void hide_unseen(const KeyValue& kv, Index b, Index q_len, Index i0, Index ni, Index j0, Index nj, std::uint32_t* words) {
  Index first[32];
  for (Index lane = 0; lane < ni; ++lane) first[lane] = first_seen(kv, b, q_len, i0 + lane);
  Index seeing = 0;  // queries that see key j: the first so many
  for (Index j = 0; j < nj; ++j) {
    while (seeing < ni && first[seeing] <= j0 + j) ++seeing;
    words[j] &= seeing >= 32 ? ~0U : (1U << seeing) - 1U;
  }
}

}  // namespace

Index first_held(const KeyValue& kv, Index b) {
  const KeyValue::Parts& p = kv.parts();
  const Index oldest =
      p.firsts != nullptr ? p.firsts[sequence_of(p, b)] : std::max<Index>(0, kv.length(b) - p.num_pages * p.page_size);
  return std::max(oldest, p.begin);
}

CachedHead cached_head(const KeyValue& kv, Index b, Index g) {
  const KeyValue::Parts& p = kv.parts();
  const Index sequence = sequence_of(p, b);
  const Index page = p.pages == nullptr ? sequence : 0;
  const auto bytes = static_cast<Index>(storage_bytes(p.storage));
  const auto matrix = [&](const KeyValue::Matrix& m) {
    return CachedMatrix{static_cast<const std::byte*>(m.rows) + (g * m.head_stride + page * m.page_stride) * bytes,
                        m.scales == nullptr ? nullptr : m.scales + g * m.scale_head_stride + page * m.scale_page_stride,
                        m.page_stride, m.row_stride, m.scale_page_stride};
  };
  CachedHead head{};
  head.type = stored_type(p.storage);
  head.k = matrix(p.k);
  head.v = matrix(p.v);
  head.pages = p.pages == nullptr ? &kOnePage : p.pages + sequence * p.pages_stride;
  head.num_pages = p.num_pages;
  head.page_size = p.page_size;
  head.first = first_held(kv, b);
  head.end = kv.length(b);
  return head;
}

void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options) {
  check<UnsupportedError>(options.empty_row != EmptyRow::kMean, function,
                          "EmptyRow::kMean, which reads masked values, is not computed on a cache");
  check<UnsupportedError>(!options.dropout.active(), function, "dropout while training is not computed on a cache");
  check<UnsupportedError>(options.capture.result == nullptr, function, "capture is not supported on a cache");
  const KeyValue::Parts& p = kv.parts();
  if (p.window == 0) return;
  for (Index b = 0; b < kv.batch(); ++b) {
    const Index wanted = std::max<Index>(0, kv.length(b) - q_len - (p.window - 1)), held = first_held(kv, b);
    check<OptionError>(held <= std::max(wanted, p.begin), function,
                       "a ring must still hold the window of the first query, so there are at most max_append of them: got ",
                       q_len, " queries at length ", kv.length(b), ", window ", p.window, ", oldest key ", held);
  }
}

int cached_mask_tile(const void* cached, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* words) {
  const CachedMask& mask = *static_cast<const CachedMask*>(cached);
  const KeyValue& kv = *mask.cache;
  if (j0 + nj <= first_seen(kv, b, mask.q_len, i0)) return kTileEmpty;
  const BoundMask own = mask.of(b);
  const int answer = mask_tile(&own, b, h, i0, ni, j0, nj, words);
  if (answer == kTileEmpty || first_seen(kv, b, mask.q_len, i0 + ni - 1) <= j0) return answer;
  if (answer == kTileFull) std::fill_n(words, nj, ~0U);
  hide_unseen(kv, b, mask.q_len, i0, ni, j0, nj, words);
  return kTilePartial;
}

void cached_mask_key_range(const void* cached, Index b, Index h, Index i0, Index ni, Index* begin, Index* end) {
  const CachedMask& mask = *static_cast<const CachedMask*>(cached);
  const BoundMask own = mask.of(b);
  mask_key_range(&own, b, h, i0, ni, begin, end);
  *begin = std::min(*end, std::max(*begin, first_seen(*mask.cache, b, mask.q_len, i0)));
}

Index cached_mask_next_key(const void* cached, Index b, Index h, Index i0, Index ni, Index key) {
  const CachedMask& mask = *static_cast<const CachedMask*>(cached);
  const BoundMask own = mask.of(b);
  return mask_next_key(&own, b, h, i0, ni, std::max(key, first_seen(*mask.cache, b, mask.q_len, i0)));
}

}  // namespace v0
}  // namespace qkv
