#include "support/cases/mask_algebra.h"

#include <algorithm>

namespace qkv::test {

namespace {

/// `mask` of two, whose pairs are join(of one, of the other).
template <class Join> MaskCase joined(const Mask& mask, MaskCase a, const MaskCase& b, Join join) {
  a.borrowed.insert(a.borrowed.end(), b.borrowed.begin(), b.borrowed.end());
  for (const auto& dense : {a.dense, b.dense}) a.borrowed.push_back(dense);
  return {mask,
      [x = a.keep, y = b.keep, join](Index s, Index h, Index i, Index j) { return join(x(s, h, i, j), y(s, h, i, j)); },
      nullptr, a.borrowed};
}

}  // namespace

MaskCase both(const MaskCase& a, const MaskCase& b) { return joined(a.mask & b.mask, a, b, std::logical_and<>()); }
MaskCase either(const MaskCase& a, const MaskCase& b) { return joined(a.mask | b.mask, a, b, std::logical_or<>()); }

reference::Keep window_keep(Index left, Index right, std::vector<Index> offsets) {
  return [=](Index b, Index, Index i, Index j) {
    const Index c = i + offsets[static_cast<std::size_t>(b)];
    return (left == -1 || j >= c - left) && (right == -1 || j <= c + right);
  };
}

MaskCase MaskMaker::expression(int depth) {
  if (depth == 0 || random_.below(4) == 0) return leaf(static_cast<LeafKind>(random_.below(kNumLeaves)));
  const MaskCase left = expression(depth - 1);
  const MaskCase right = expression(depth - 1);
  return random_.below(2) == 0 ? both(left, right) : either(left, right);
}

MaskCase MaskMaker::leaf(LeafKind kind) {
  switch (kind) {
    case LeafKind::kCausal: {
      const auto [align, offset] = alignment();
      return {Mask::causal(align), [=](Index, Index, Index i, Index j) { return j <= i + offset; }};
    }
    case LeafKind::kCausalOffsets: {
      const std::vector<Index> offsets = each([&] { return any_offset(); });
      return {Mask::causal(offsets), [=](Index b, Index, Index i, Index j) { return j <= i + at(offsets, b); }};
    }
    case LeafKind::kWindow: {
      const auto [align, offset] = alignment();
      const Index left = reach(), right = reach();
      return {Mask::window(left, right, align), window_keep(left, right, std::vector<Index>(count(batch_), offset))};
    }
    case LeafKind::kWindowOffsets: {
      const std::vector<Index> offsets = each([&] { return any_offset(); });
      const Index left = reach(), right = reach();
      return {Mask::window(left, right, offsets), window_keep(left, right, offsets)};
    }
    case LeafKind::kDilated: {
      const auto [align, offset] = alignment();
      const Index step = 1 + random_.below(40);
      return {Mask::dilated(step, align),
          [=](Index, Index, Index i, Index j) { return std::abs(j - i - offset) % step == 0; }};
    }
    case LeafKind::kChunked:
    case LeafKind::kChunkedStarts: {
      const auto [align, offset] = alignment();
      const Index size = 1 + random_.below(70);
      const bool has_starts = kind == LeafKind::kChunkedStarts;
      const std::vector<Index> starts = each([&] { return has_starts ? random_.below(kv_len_ + 1) : 0; });
      // The chunk of a position, counted by walking: no division to get wrong below 0.
      const auto chunk = [=](Index position) {
        Index number = 0;
        for (; position < 0; position += size) --number;
        for (; position >= size; position -= size) ++number;
        return number;
      };
      return {has_starts ? Mask::chunked(size, starts, align) : Mask::chunked(size, align),
          [=](Index b, Index, Index i, Index j) {
            return chunk(i + offset - at(starts, b)) == chunk(j - at(starts, b));
          }};
    }
    case LeafKind::kKeyLengths: {
      if (!lengths_) return leaf(LeafKind::kPrefix);
      const std::vector<Index> ends = each([&] { return random_.below(kv_len_ + 1); });
      return {Mask::key_lengths(ends), [=](Index b, Index, Index, Index j) { return j < at(ends, b); }};
    }
    case LeafKind::kKeyStarts: {
      const std::vector<Index> starts = each([&] { return random_.below(kv_len_ + 1); });
      return {Mask::key_starts(starts), [=](Index b, Index, Index, Index j) { return j >= at(starts, b); }};
    }
    case LeafKind::kQueryLengths: {
      const std::vector<Index> ends = each([&] { return random_.below(q_len_ + 1); });
      return {Mask::query_lengths(ends), [=](Index b, Index, Index i, Index) { return i < at(ends, b); }};
    }
    case LeafKind::kPrefix: {
      const std::vector<Index> ends = each([&] { return random_.below(kv_len_ + 1); });
      return {Mask::prefix(ends), [=](Index b, Index, Index, Index j) { return j < at(ends, b); }};
    }
    case LeafKind::kFirst: {
      const Index n = random_.below(kv_len_ + 3);
      return {Mask::first(n), [=](Index, Index, Index, Index j) { return j < n; }};
    }
    case LeafKind::kGlobalRows: {
      const std::vector<Index> rows = positions(q_len_);
      return {Mask::global_rows(rows), [=](Index, Index, Index i, Index) { return std::ranges::count(rows, i) > 0; }};
    }
    case LeafKind::kGlobalColumns: {
      const std::vector<Index> columns = positions(kv_len_);
      return {Mask::global_columns(columns),
          [=](Index, Index, Index, Index j) { return std::ranges::count(columns, j) > 0; }};
    }
    case LeafKind::kDocuments:
    case LeafKind::kDocumentsInside:
    case LeafKind::kDocumentGaps: return documents(kind);
    case LeafKind::kDocumentIds:
    case LeafKind::kDocumentIdsEach: return document_ids(kind == LeafKind::kDocumentIdsEach);
    case LeafKind::kDense: return dense();
    case LeafKind::kBlocks: return blocks();
    case LeafKind::kKeys: return keys();
    case LeafKind::kMaskMod: {
      const Index a = 1 + random_.below(5), b = 1 + random_.below(5), modulus = 2 + random_.below(5);
      const auto keep = [=](Index s, Index h, Index i, Index j) { return (a * i + b * j + 3 * h + s) % modulus != 0; };
      return {Mask::mask_mod(keep), keep};
    }
  }
  return {};
}

std::pair<Align, Index> MaskMaker::alignment() {
  if (q_len_ == kv_len_ && random_.below(2) == 0) return {Align::kSquare, 0};
  if (!lengths_ && random_.below(2) == 0) return {Align::kBottomRight, kv_len_ - q_len_};
  return {Align::kTopLeft, 0};
}

std::vector<Index> MaskMaker::positions(Index length) {
  std::vector<Index> some;
  if (length == 0) return some;
  for (Index n = random_.below(6); n > 0; --n) some.push_back(random_.below(length));
  if (random_.below(4) == 0) {
    for (Index p = random_.below(length); p < length; ++p) some.push_back(p);
  }
  return some;
}

std::vector<Index> MaskMaker::cuts(Index documents, Index length) {
  std::vector<Index> offsets = {0, length};
  for (Index n = 1; n < documents; ++n) offsets.push_back(random_.below(length + 1));
  std::ranges::sort(offsets);
  return offsets;
}

MaskCase MaskMaker::documents(LeafKind kind) {
  const Index number = 1 + random_.below(6);
  const std::vector<Index> q = cuts(number, q_len_), k = cuts(number, kv_len_);
  std::vector<Index> held;  // the keys that lie in no gap
  for (std::size_t d = 0; d + 1 < k.size(); ++d) {
    const bool gaps = kind == LeafKind::kDocumentGaps;
    const Index begin = k[d] + (gaps ? random_.below(k[d + 1] - k[d] + 1) : 0);
    const Index end = k[d + 1] - (gaps ? random_.below(k[d + 1] - begin + 1) : 0);
    for (Index j = begin; j < end; ++j) held.push_back(j);
  }
  Mask inside;
  std::function<bool(Index, Index, Index)> keep_inside = [](Index, Index, Index) { return true; };
  if (kind != LeafKind::kDocuments) {
    const Index way = random_.below(4), left = random_.below(40);
    const std::vector<Index> offsets = [&] {
      std::vector<Index> drawn(count(number));
      for (Index& offset : drawn) offset = random_.below(60) - 30;
      return drawn;
    }();
    const auto last = [=](Index d) { return (at(k, d + 1) - at(k, d)) - (at(q, d + 1) - at(q, d)); };
    if (way == 0) {
      inside = Mask::causal(Align::kTopLeft);
      keep_inside = [](Index, Index i, Index j) { return j <= i; };
    } else if (way == 1) {
      inside = Mask::causal(Align::kBottomRight);
      keep_inside = [=](Index d, Index i, Index j) { return j <= i + last(d); };
    } else if (way == 2) {
      inside = Mask::causal(Align::kBottomRight) & Mask::window(left, -1, Align::kBottomRight);
      keep_inside = [=](Index d, Index i, Index j) { return j <= i + last(d) && j >= i + last(d) - left; };
    } else {
      inside = Mask::causal(offsets);
      keep_inside = [=](Index d, Index i, Index j) { return j <= i + at(offsets, d); };
    }
  }
  const auto keep = [=](Index, Index, Index i, Index j) {
    for (Index d = 0; d < number; ++d) {
      if (i >= at(q, d) && i < at(q, d + 1) && j >= at(k, d) && j < at(k, d + 1)) {
        return std::ranges::binary_search(held, j) && keep_inside(d, i - at(q, d), j - at(k, d));
      }
    }
    return false;
  };
  const Mask documents = Mask::documents(q, k, inside);
  return {kind == LeafKind::kDocumentGaps ? documents & Mask::global_columns(held) : documents, keep};
}

MaskCase MaskMaker::document_ids(bool each_sequence) {
  const Index rows = each_sequence ? batch_ : 1, kinds = 1 + random_.below(5);
  auto q = std::make_shared<Tensor<Index>>(std::vector<Index>{rows, q_len_});
  auto k = std::make_shared<Tensor<Index>>(std::vector<Index>{rows, kv_len_});
  for (const auto& ids : {q, k}) {
    Index id = 0;
    const bool mixed = random_.below(3) == 0;
    for (Index& one : ids->span()) {
      if (mixed || random_.below(20) == 0) id = random_.below(kinds + 1) - 1;  // -1: no document
      one = id;
    }
  }
  const View<const Index, 2> q_ids = *q, k_ids = *k;
  const auto keep = [q, k, q_ids, k_ids, each_sequence](Index b, Index, Index i, Index j) {
    const Index row = each_sequence ? b : 0;
    return q_ids(row, i) == k_ids(row, j) && q_ids(row, i) >= 0;
  };
  if (each_sequence) return {Mask::document_ids(q_ids, k_ids), keep};
  return {Mask::document_ids(q->span(), k->span()), keep};
}

MaskCase MaskMaker::dense() {
  const auto full = [&] { return random_.below(2) == 0; };
  const bool b = full(), h = full(), i = full(), j = full(), drop = full();
  auto bytes = std::make_shared<Tensor<std::uint8_t>>(
      std::vector<Index>{b ? batch_ : 1, h ? num_heads_ : 1, i ? q_len_ : 1, j ? kv_len_ : 1});
  const Index out_of_ten = random_.below(11);
  for (std::uint8_t& one : bytes->span()) one = random_.below(10) < out_of_ten ? 3 : 0;
  const View<const std::uint8_t, 4> view = *bytes;
  return {drop ? Mask::drop(view) : Mask::keep(view),
      [=](Index sequence, Index head, Index query, Index key) {
        return (view(b ? sequence : 0, h ? head : 0, i ? query : 0, j ? key : 0) != 0) != drop;
      },
      bytes};
}

MaskCase MaskMaker::blocks() {
  auto map = std::make_shared<BlockMap>();
  map->q_block = 1 + random_.below(70);
  map->kv_block = 1 + random_.below(70);
  map->q_blocks = (q_len_ + map->q_block - 1) / map->q_block;
  map->kv_blocks = (kv_len_ + map->kv_block - 1) / map->kv_block;
  map->batch = random_.below(2) == 0 ? 1 : std::max<Index>(1, batch_);
  map->num_heads = random_.below(2) == 0 ? 1 : std::max<Index>(1, num_heads_);
  const Index out_of_ten = random_.below(11);
  std::vector<bool> live;
  for (Index row = 0; row < map->batch * map->num_heads * map->q_blocks; ++row) {
    for (Index column = 0; column < map->kv_blocks; ++column) {
      live.push_back(random_.below(10) < out_of_ten);
      if (live.back()) map->columns.push_back(column);
    }
    map->row_begin.push_back(map->live_blocks());
  }
  return {Mask::blocks(*map),
      [live, map = map.get()](Index b, Index h, Index i, Index j) {
        const Index plane = (map->batch == 1 ? 0 : b) * map->num_heads + (map->num_heads == 1 ? 0 : h);
        return bool{live[count((plane * map->q_blocks + i / map->q_block) * map->kv_blocks + j / map->kv_block)]};
      },
      nullptr, {map}};
}

MaskCase MaskMaker::keys() {
  const Index lists = random_.below(2) == 0                          ? 1
                      : random_.below(2) == 0 && num_heads_ % 2 == 0 ? num_heads_ / 2
                                                                     : num_heads_;
  const Index batch = random_.below(2) == 0 ? 1 : batch_,
              width = 1 + random_.below(random_.below(2) == 0 ? kv_len_ / 12 + 2 : kv_len_ + 1);
  auto index =
      std::make_shared<Tensor<std::int32_t>>(std::vector<Index>{batch, std::max<Index>(lists, 1), q_len_, width});
  std::vector<std::int32_t> order(count(kv_len_));
  for (std::size_t n = 0; n < order.size(); ++n) order[n] = static_cast<std::int32_t>(n);
  for (Index row = 0; row < index->count() / width; ++row) {
    const Index style = random_.below(6), wanted = style == 0 ? 0 : style == 1 ? 1 : width;
    Index listed = 0;
    for (Index n = 0; n < width; ++n) {
      std::int32_t& key = index->data()[row * width + n];
      key = -1;
      if (listed == std::min(wanted, kv_len_) || random_.below(8) == 0) continue;
      std::swap(order[count(listed)], order[count(listed + random_.below(kv_len_ - listed))]);
      key = order[count(listed++)];
    }
  }
  const View<const std::int32_t, 4> view = *index;
  const Index group = std::max<Index>(1, num_heads_ / std::max<Index>(lists, 1));
  return {Mask::keys(view),
      [=](Index b, Index h, Index i, Index j) {
        for (Index n = 0; n < view.size(3); ++n) {
          if (view(view.size(0) == 1 ? 0 : b, h / group, i, n) == j) return true;
        }
        return false;
      },
      nullptr, {index}};
}

}  // namespace qkv::test
