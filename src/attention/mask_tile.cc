// How a call asks a mask: one pair, one tile (verdict and bitmap), or the range of keys and queries that can meet.
// Each leaf has one function for the verdict and one for the bits; leaves are combined with &, never walked per element.
#include <algorithm>

#include "attention/mask_node.h"

namespace qkv {
inline namespace v0 {
namespace {

constexpr Index kFar = Index{1} << 60;  // beyond every position, and sums of two of them do not overflow

struct Tile {
  Index b, h, i0, ni, j0, nj;
};

// keep(i, j) = low <= j - i <= high
struct Diagonals {
  Index low, high;
};

Index offset_of(const Band& band, const MaskExtent& extent, Index b) {
  if (band.offsets != nullptr) return (*band.offsets)[static_cast<std::size_t>(b)];
  return band.align == Align::kBottomRight ? extent.kv_len - extent.q_len : 0;
}

Diagonals diagonals(const Band& band, const MaskExtent& extent, Index b) {
  const Index offset = offset_of(band, extent, b);
  Index edge = 0;
  const bool no_low = band.left < 0 || __builtin_sub_overflow(offset, band.left, &edge);
  const Index low = no_low ? -kFar : std::clamp(edge, -kFar, kFar);
  const bool no_high = band.right < 0 || __builtin_add_overflow(offset, band.right, &edge);
  return {low, no_high ? kFar : std::clamp(edge, -kFar, kFar)};
}

int verdict(const Diagonals& d, const Tile& t) {
  const Index smallest = t.j0 - (t.i0 + t.ni - 1), largest = t.j0 + t.nj - 1 - t.i0;  // of j - i over the tile
  if (smallest > d.high || largest < d.low) return kTileEmpty;
  return smallest >= d.low && largest <= d.high ? kTileFull : kTilePartial;
}

/// Bits [begin, end) of a word of 32, clamped.
std::uint32_t bit_range(Index begin, Index end) {
  const auto below = [](Index n) { return n >= 32 ? ~0U : n <= 0 ? 0U : (1U << n) - 1U; };
  return below(end) & ~below(begin);
}

void fill(const Diagonals& d, const Tile& t, std::uint32_t* words) {
  for (Index j = 0; j < t.nj; ++j) {
    const Index from_first = t.j0 + j - t.i0;  // low <= from_first - lane <= high
    words[j] &= bit_range(from_first - d.high, from_first - d.low + 1);
  }
}

int verdict_of_length(Index length, const Tile& t) {
  if (t.j0 >= length) return kTileEmpty;
  return t.j0 + t.nj <= length ? kTileFull : kTilePartial;
}

void fill_length(Index length, const Tile& t, std::uint32_t* words) {
  for (Index j = std::max<Index>(0, length - t.j0); j < t.nj; ++j) words[j] = 0;
}

Index repeat(const Dense& leaf, int axis) { return leaf.values.size(axis) == 1 ? 0 : leaf.values.stride(axis); }

void fill_dense(const Dense& leaf, const Tile& t, std::uint32_t* words) {
  const std::uint8_t* data = leaf.values.data() + t.b * repeat(leaf, 0) + t.h * repeat(leaf, 1);
  const Index row_stride = repeat(leaf, 2), column_stride = repeat(leaf, 3);
  const std::uint32_t flip = leaf.keep ? 0U : 1U;
  std::uint32_t bits[256] = {};  // chunks hold at most 128 keys; larger tiles go in pieces
  for (Index begin = 0; begin < t.nj; begin += 256) {
    const Index n = std::min<Index>(256, t.nj - begin);
    std::fill_n(bits, n, 0U);
    for (Index lane = 0; lane < t.ni; ++lane) {
      const std::uint8_t* row = data + (t.i0 + lane) * row_stride + (t.j0 + begin) * column_stride;
      if (column_stride == 1) {  // the loop that compilers vectorise
        for (Index j = 0; j < n; ++j) bits[j] |= ((row[j] != 0 ? 1U : 0U) ^ flip) << lane;
      } else {
        for (Index j = 0; j < n; ++j) bits[j] |= ((row[j * column_stride] != 0 ? 1U : 0U) ^ flip) << lane;
      }
    }
    for (Index j = 0; j < n; ++j) words[begin + j] &= bits[j];
  }
}

/// Full, empty or partial by what the bits say; lanes past ni do not count.
int verdict_of_bits(const Tile& t, const std::uint32_t* words) {
  const std::uint32_t all = bit_range(0, t.ni);
  bool any = false, every = true;
  for (Index j = 0; j < t.nj; ++j) {
    any |= (words[j] & all) != 0;
    every &= (words[j] & all) == all;
  }
  return every ? kTileFull : any ? kTilePartial : kTileEmpty;
}

}  // namespace

bool mask_keeps(const BoundMask& mask, Index b, Index h, Index i, Index j) {
  std::uint32_t word = 0;
  const int answer = mask_tile(&mask, b, h, i, 1, j, 1, &word);
  return answer == kTileFull || (answer == kTilePartial && (word & 1U) != 0);
}

int mask_tile(const void* bound, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* words) {
  const BoundMask& mask = *static_cast<const BoundMask*>(bound);
  if (mask.node == nullptr) return kTileFull;
  const Mask::Node& node = *mask.node;
  const Tile tile{b, h, i0, ni, j0, nj};
  int answer = kTileFull;
  for (const Band& band : node.bands) answer = std::min(answer, verdict(diagonals(band, mask.extent, b), tile));
  for (const KeyLengths& leaf : node.lengths) {
    answer = std::min(answer, verdict_of_length((*leaf.lengths)[static_cast<std::size_t>(b)], tile));
  }
  if (answer == kTileEmpty || (answer == kTileFull && node.dense.empty())) return answer;
  std::fill_n(words, nj, bit_range(0, ni));
  for (const Band& band : node.bands) fill(diagonals(band, mask.extent, b), tile, words);
  for (const KeyLengths& leaf : node.lengths) fill_length((*leaf.lengths)[static_cast<std::size_t>(b)], tile, words);
  if (node.dense.empty()) return kTilePartial;
  for (const Dense& leaf : node.dense) fill_dense(leaf, tile, words);
  return verdict_of_bits(tile, words);
}

void mask_key_range(const void* bound, Index b, Index /*h*/, Index i0, Index ni, Index* begin, Index* end) {
  const BoundMask& mask = *static_cast<const BoundMask*>(bound);
  *begin = 0;
  *end = mask.extent.kv_len;
  if (mask.node == nullptr) return;
  for (const Band& band : mask.node->bands) {
    const Diagonals d = diagonals(band, mask.extent, b);
    *begin = std::max(*begin, i0 + d.low);
    *end = std::min(*end, i0 + ni - 1 + d.high + 1);
  }
  for (const KeyLengths& leaf : mask.node->lengths) {
    *end = std::min(*end, (*leaf.lengths)[static_cast<std::size_t>(b)]);
  }
  *end = std::max(*end, Index{0});
  *begin = std::min(*begin, *end);
}

void mask_query_range(const BoundMask& mask, Index b, Index /*h*/, Index j0, Index nj, Index* begin, Index* end) {
  *begin = 0;
  *end = mask.extent.q_len;
  if (mask.node == nullptr) return;
  for (const Band& band : mask.node->bands) {
    const Diagonals d = diagonals(band, mask.extent, b);  // j - high <= i <= j - low
    *begin = std::max(*begin, j0 - d.high);
    *end = std::min(*end, j0 + nj - 1 - d.low + 1);
  }
  for (const KeyLengths& leaf : mask.node->lengths) {
    if (j0 >= (*leaf.lengths)[static_cast<std::size_t>(b)]) *end = 0;
  }
  *end = std::max(*end, Index{0});
  *begin = std::min(*begin, *end);
}

}  // namespace v0
}  // namespace qkv
