// A call whose mask lists each query's keys (Mask::keys): when only those are read, and as which rows kernels see them. A
// query's listed rows of K and V are a cache of pages of one row, in the order of keys, for all query heads that share the list
// and the key/value head.
#pragma once

#include "attention/call/problem.h"
#include "attention/mask/key_lists.h"

namespace qkv::inline v0 {

/// Below this many keys the start of another algorithm than tiles costs more than it saves.
inline constexpr Index kDecodeMinKeys = 64;

template <class T>
class Listed {
 public:
  /// Applies if options() are served and pays() is true. Refers to the problem.
  [[gnu::noinline]] explicit Listed(const Problem<T>& p) : p_(p), lists_(p.invariant ? nullptr : key_lists_of(p.mask.node)) {
    if (lists_ == nullptr) return;
    block_heads_ = lists_->block_heads(*p.mask.node, p.group_size(), p.heads);
    filters_ = p.mask.node->parts.size() > 1 || (p.mask.shown != nullptr && !p.mask.shown->all());
    applies_ = serves_options() && has_one_stride() && pays();
  }

  /// Decided by shapes and options of the whole problem: neither threads, outputs asked for, other sequences nor how many of its
  /// rows and heads are here change bits, where a key/value head comes with all its query heads (AttentionOptions::place).
  bool applies() const { return applies_; }
  /// Whether backward goes by the lists too. Its kernel uses a lane a head, so keys must be fewer; empty rows give nothing.
  bool applies_backward() const {
    return applies_ && p_.empty_row == EmptyRow::kZero && lists_->width() * 2 * factor() <= p_.kv_len;
  }
  /// Heads that share a list and K and V: head h0 = block * block_heads() and those after it.
  Index block_heads() const { return block_heads_; }
  Index blocks() const { return p_.num_heads / block_heads_; }
  Index longest() const { return lists_->longest(); }

  /// The rows of K and V that query i of the heads from h0 on attends, both counted here, among keys [begin, end). `pages`: memory
  /// of longest() numbers, to which the result refers; keys[n] is set to the number of row n's key unless null.
  [[gnu::noinline]] HeadKeys rows(Index b, Index h0, Index i, Index begin, Index end, Index* pages, Index* keys) const {
    const Index whole_head = p_.first_head + h0, query = p_.first_query + i;  // as masks count them
    const std::span<const std::int32_t> all = lists_->row(b, whole_head, p_.heads, query);
    HeadKeys head = head_of(b, h0 / p_.group_size());
    Index count = 0;
    for (auto key = std::lower_bound(all.begin(), all.end(), begin); key != all.end() && *key < end; ++key) {
      if (filters_ && !mask_keeps(p_.mask, b, whole_head, query, *key)) continue;
      if (keys != nullptr) keys[count] = *key;
      pages[count++] = page_of(head, *key);
    }
    const auto by_row = [](KeyMatrix& m, bool cached) {
      if (cached) m.page_stride = m.row_stride;
      m.scale_page_stride = 1;
    };
    by_row(head.k, p_.cache != nullptr);
    by_row(head.v, p_.cache != nullptr);
    head.pages = pages;
    head.num_pages = std::max<Index>(1, count);
    head.page_rows = 1;
    head.pinned = {};
    head.held = {0, count};
    return head;
  }

 private:
  bool serves_options() const {
    return p_.bias.is_null() && p_.position_bias->is_none() && p_.score_mod == nullptr && p_.dropout_threshold == 0;
  }
  /// Whether rows of all pages lie at multiples of one stride, so that a row is a page.
  bool has_one_stride() const {
    if (p_.cache == nullptr || p_.cache->parts().num_pages == 1) return true;
    const KeyValue::Parts& c = p_.cache->parts();
    const auto rows_of_page = [](const KeyValue::Matrix& m) {
      return m.row_stride > 0 && m.page_stride % m.row_stride == 0 ? m.page_stride / m.row_stride : -1;
    };
    const Index rows = rows_of_page(c.k);
    const auto scales_follow = [rows](const KeyValue::Matrix& m) { return m.scales == nullptr || m.scale_page_stride == rows; };
    return rows > 0 && rows == rows_of_page(c.v) && scales_follow(c.k) && scales_follow(c.v);
  }
  /// Whether fewer keys are worth the loss of neighbours: a listed row is read for the heads of a block alone, where tiles read
  /// it for many queries. By sizes that a sequence has alone as in any batch: on a cache, whose sequences differ in length, not
  /// by Tk. The factors are measured: forward of 2,048 to 8,192 queries on 4,096 and 8,192 keys, D 128, on Zen 5.
  bool pays() const {
    const bool few = p_.queries * p_.group_size() <= kDecodeRowLimit;
    if (p_.cache != nullptr) return few || block_heads_ >= 4;
    return p_.kv_len >= kDecodeMinKeys && lists_->width() * (few ? 2 : factor()) <= p_.kv_len;
  }
  Index factor() const { return block_heads_ >= 8 ? 3 : block_heads_ >= 4 ? 5 : block_heads_ >= 2 ? 8 : 12; }
  HeadKeys head_of(Index b, Index g) const {
    if (p_.cache != nullptr) {
      HeadKeys head = cached_head(*p_.cache, b, g);
      if (head.num_pages == 1) to_page(head, head.page(0));
      return head;
    }
    HeadKeys head{};
    head.type = stored_as<T>();
    head.k = {p_.k.data() + b * p_.k.stride(0) + g * p_.k.stride(1), nullptr, p_.k.stride(2), 0, 0};
    head.v = {p_.v.data() + b * p_.v.stride(0) + g * p_.v.stride(1), nullptr, p_.v.stride(2), 0, 0};
    return head;
  }
  /// Makes `page` page 0.
  void to_page(HeadKeys& head, Index page) const {
    const auto bytes = static_cast<Index>(storage_bytes(p_.cache->storage()));
    for (KeyMatrix* m : {&head.k, &head.v}) {
      m->rows = static_cast<const std::byte*>(m->rows) + page * m->page_stride * bytes;
      if (m->scales != nullptr) m->scales += page * m->scale_page_stride;
    }
  }
  /// The page of one row that holds a key.
  Index page_of(const HeadKeys& head, Index key) const {
    if (p_.cache == nullptr) return key;
    if (key < head.pinned.end) return head.page_rows + key;
    const Index rows = head.num_pages == 1 ? 0 : head.k.page_stride / head.k.row_stride;
    return head.page(key / head.page_rows % head.num_pages) * rows + key % head.page_rows;
  }

  const Problem<T>& p_;
  const KeyLists* lists_;
  Index block_heads_ = 1;
  bool filters_ = false, applies_ = false;
};

}  // namespace qkv::inline v0
