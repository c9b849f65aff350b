#include "attention/keys/key_source.h"

#include <algorithm>

#include "core/check.h"
#include "core/cpu.h"
#include "core/threads/callback_error.h"

namespace qkv::inline v0 {
namespace {

Index sequence_of(const KeyValue::Parts& p, Index b) { return p.sequences == nullptr ? b : p.sequences[b]; }

/// The first of keys [begin, end) that query i is to see although others of them are dropped; -1: all are kept, or
/// none.
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

/// Makes `page` page 0.
void to_page(HeadKeys& head, Index page, Index element_bytes) {
  for (KeyMatrix* m : {&head.k, &head.v}) {
    m->rows = static_cast<const std::byte*>(m->rows) + page * m->page_stride * element_bytes;
    if (m->scales != nullptr) m->scales += page * m->scale_page_stride;
  }
}

}  // namespace

Index first_held(const KeyValue& kv, Index b) {
  const KeyValue::Parts& p = kv.parts();
  return p.firsts != nullptr ? p.firsts[sequence_of(p, b)]
                             : std::max<Index>(0, kv.length(b) - p.num_pages * p.page_size);
}

KeySource::KeySource(const KeyValue& kv) : cache_(&kv), type_(kv.storage()), kv_len_(kv.max_length()) {
  const auto sizes = [&](Index width) {
    AnyView x{};
    x.type = kv.storage();
    x.rank = 4;
    x.sizes = {kv.batch(), kv.num_kv_heads(), kv_len_, width};
    x.strides = {0, 0, 0, 1};
    return x;
  };
  k = sizes(kv.head_dim());
  v = sizes(kv.v_head_dim());
}

AnyView KeySource::memory(const AnyView& x, KeyValue::Matrix KeyValue::Parts::*which) const {
  if (cache_ == nullptr) return x;
  const KeyValue::Parts& p = cache_->parts();
  const KeyValue::Matrix& m = p.*which;
  AnyView all = x;
  all.data = is_given() ? static_cast<std::byte*>(const_cast<void*>(m.rows)) : nullptr;
  all.sizes = {p.given_pages, p.num_kv_heads, p.page_size, x.size(3)};
  all.strides = {m.page_stride, m.head_stride, m.row_stride, 1};
  return all;
}

View<const Index, 1> KeySource::lengths_memory() const {
  if (!is_given() || cache_->parts().lengths == nullptr) return {};
  return {cache_->parts().lengths, {cache_->batch()}};
}

View<const Index, 2> KeySource::table_memory() const {
  if (!is_given() || cache_->parts().pages == nullptr) return {};
  const KeyValue::Parts& p = cache_->parts();
  return {p.pages, {p.batch, p.num_pages}, {p.pages_stride, 1}};
}

HeadKeys KeySource::head(Index b, Index g) const {
  const auto dense = [&](const AnyView& x) {  // null stays null, whatever its strides
    return x.data == nullptr ? KeyMatrix{} : KeyMatrix{x.at(b, g), nullptr, 0, x.stride(2), 0};
  };
  const bool into_l2 = prefers_l2_prefetch();
  if (cache_ == nullptr) {
    return {type_, dense(k), dense(v), nullptr, 1, k.size(2), {}, {begin_, begin_ + k.size(2)}, begin_, into_l2};
  }
  const KeyValue::Parts& p = cache_->parts();
  const Index sequence = sequence_of(p, b), page = p.pages == nullptr ? sequence : 0, length = cache_->length(b);
  const Index bytes = k.element_bytes();
  const auto matrix = [&](const KeyValue::Matrix& m) {
    return KeyMatrix{static_cast<const std::byte*>(m.rows) + (g * m.head_stride + page * m.page_stride) * bytes,
        m.scales == nullptr ? nullptr : m.scales + g * m.scale_head_stride + page * m.scale_page_stride, m.page_stride,
        m.row_stride, m.scale_page_stride};
  };
  return {type_, matrix(p.k), matrix(p.v), p.pages == nullptr ? nullptr : p.pages + sequence * p.pages_stride,
      p.num_pages, p.page_size, {0, std::min(p.pinned, length)}, {first_held(*cache_, b), length}, 0, into_l2};
}

bool KeySource::rows_can_be_pages() const {
  if (cache_ == nullptr || cache_->parts().num_pages == 1) return true;
  const KeyValue::Parts& c = cache_->parts();
  const auto rows_of_page = [](const KeyValue::Matrix& m) {
    return m.row_stride > 0 && m.page_stride % m.row_stride == 0 ? m.page_stride / m.row_stride : -1;
  };
  const Index rows = rows_of_page(c.k);
  const auto scales_follow = [rows](const KeyValue::Matrix& m) {
    return m.scales == nullptr || m.scale_page_stride == rows;
  };
  return rows > 0 && rows == rows_of_page(c.v) && scales_follow(c.k) && scales_follow(c.v);
}

HeadKeys KeySource::rows(Index b, Index g, Index* keys, Index count) const {
  HeadKeys head = this->head(b, g);
  if (cache_ != nullptr && count > 0 && head.num_pages == 1) to_page(head, head.page(0), k.element_bytes());
  const Index rows = head.num_pages == 1 ? 0 : head.k.page_stride / head.k.row_stride;
  for (Index n = 0; n < count && cache_ != nullptr; ++n) {
    const Index key = keys[n];
    keys[n] = key < head.pinned.end ? head.page_rows + key
                                    : head.page(key / head.page_rows % head.num_pages) * rows + key % head.page_rows;
  }
  for (KeyMatrix* m : {&head.k, &head.v}) {
    m->page_stride = m->row_stride;
    m->scale_page_stride = 1;
  }
  head.pages = keys;
  head.num_pages = std::max<Index>(1, count);
  head.page_rows = 1;
  head.pinned = {};
  head.held = {0, count};
  return head;
}

void check_cached_call(const char* function, const KeyValue& kv, Index q_len, const AttentionOptions& options) {
  check<UnsupportedError>(options.empty_row != EmptyRow::kMean, function,
      "EmptyRow::kMean, which reads masked values, is not computed on a cache");
  check<UnsupportedError>(!options.dropout.active(), function, "dropout while training is not computed on a cache");
  const KeyValue::Parts& p = kv.parts();
  if (p.window == 0) return;
  for (Index b = 0; b < kv.batch(); ++b) {
    const Index wanted = std::max<Index>(0, kv.length(b) - q_len - (p.window - 1)), held = first_held(kv, b);
    check<OptionError>(held <= std::max(wanted, p.pinned), function,
        "a ring must still hold the window of the first query, so there are at most max_append of them, and fewer "
        "after "
        "truncate, here ",
        std::max<Index>(0, kv.length(b) - held - (p.window - 1)), ": got ", q_len, " queries at length ", kv.length(b),
        ", window ", p.window, ", oldest key ", held);
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
            [&] { return mask.shown->text(false); }, ": got mask ", text_of(*mask.node), " for query ", i,
            " of sequence ", b, ", window ", p.window, ", first ", p.pinned);
      }
    }
  }
}

}  // namespace qkv::inline v0
