#include "attention/mask/summary.h"

#include <cstring>
#include <new>

#include "attention/mask/node.h"
#include "core/threads/region.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kBlockQueries = 32, kBlockKeys = 64;  // a lane mask; half of the widest chunk of keys

constexpr Index blocks_of(Index count, Index block) { return (count + block - 1) / block; }

// The contents of a block, two bits.
constexpr int kDropped = 1, kKept = 2;

using Bytes = std::uint8_t __attribute__((vector_size(16)));  // every machine has such vectors

bool any_nonzero(const Bytes& bytes) {
  std::uint64_t lane_masks[2];
  std::memcpy(lane_masks, &bytes, sizeof(lane_masks));
  return (lane_masks[0] | lane_masks[1]) != 0;
}

/// kBlockKeys values of each row.
void scan_lines(const std::uint8_t* rows, Index stride, Index count, bool& zero, bool& nonzero) {
  constexpr Index pieces = kBlockKeys / static_cast<Index>(sizeof(Bytes));
  Bytes ones[pieces]{}, zeros[pieces]{};
  for (Index row = 0; row < count; ++row) {
#pragma GCC unroll 8
    for (Index n = 0; n < pieces; ++n) {
      Bytes piece;
      std::memcpy(&piece, rows + row * stride + n * static_cast<Index>(sizeof(Bytes)), sizeof(Bytes));
      ones[n] |= piece;
      zeros[n] |= reinterpret_cast<Bytes>(piece == Bytes{});
    }
  }
  for (Index n = 0; n < pieces; ++n) {
    zero |= any_nonzero(zeros[n]);
    nonzero |= any_nonzero(ones[n]);
  }
}

Index count_dense(const Mask::Node* node) {
  Index leaves = 0;
  each_dense(node, [&](const DenseLeaf&) { ++leaves; });
  return leaves;
}

/// Bytes of each of so many leaves.
std::size_t limit_of(Index leaves) { return DenseSummaries::kLimitBytes / static_cast<std::size_t>(leaves); }

}  // namespace

DenseSummary::DenseSummary(const DenseLeaf& of, std::size_t limit_bytes)
    : leaf(&of), dense(of.dense()), blocks(nullptr) {
  measure(kBlockQueries, kBlockKeys);
  for (bool wider = true; bytes() > limit_bytes && row_blocks * column_blocks > 1; wider = !wider) {
    measure(wider ? block_queries : 2 * block_queries, wider ? 2 * block_keys : block_keys);
  }
  if (bytes() > limit_bytes) row_blocks = 0;
}

void DenseSummary::measure(Index queries, Index keys) {
  block_queries = queries;
  block_keys = keys;
  row_blocks = blocks_of(dense.values.size(2), queries);
  column_blocks = blocks_of(dense.values.size(3), keys);
  row_bytes = blocks_of(column_blocks, 4);
}

/// Summarises values [queries] x [keys]. Reads eight rows at a time and stops once both kinds were found.
int DenseSummary::held_by(const std::uint8_t* from, Index queries, Index keys) const {
  constexpr Index together = 8;
  const Index row_stride = dense.stride(2), stride = dense.stride(3);
  bool zero = false, nonzero = false;
  for (Index i = 0; i < queries && !(zero && nonzero); i += together) {
    const std::uint8_t* rows = from + i * row_stride;
    const Index count = std::min(together, queries - i);
    Index j = 0;
    for (; stride == 1 && j + kBlockKeys <= keys; j += kBlockKeys)
      scan_lines(rows + j, row_stride, count, zero, nonzero);
    for (; j < keys; ++j) {
      for (Index row = 0; row < count; ++row) (rows[row * row_stride + j * stride] != 0 ? nonzero : zero) = true;
    }
  }
  return ((dense.keep ? nonzero : zero) ? kKept : 0) | ((dense.keep ? zero : nonzero) ? kDropped : 0);
}

void DenseSummary::fill(Index item) const {
  const View<const std::uint8_t, 4>& values = dense.values;
  const Index plane = item / row_blocks, i0 = item % row_blocks * block_queries;
  const std::uint8_t* first = values.data() + plane / values.size(1) * dense.stride(0) +
                              plane % values.size(1) * dense.stride(1) + i0 * dense.stride(2);
  std::uint8_t* to = blocks + item * row_bytes;
  std::fill_n(to, row_bytes, std::uint8_t{0});
  for (Index block = 0; block < column_blocks; ++block) {
    const Index j0 = block * block_keys;
    const int both = held_by(first + j0 * dense.stride(3), std::min(block_queries, values.size(2) - i0),
        std::min(block_keys, values.size(3) - j0));
    to[block / 4] = static_cast<std::uint8_t>(to[block / 4] | both << (block % 4 * 2));
  }
}

int DenseSummary::verdict(const Pairs& pairs) const {
  if (row_blocks == 0) return kTilePartial;
  const Positions rows = row_blocks_of(pairs);
  const bool repeats = dense.values.size(3) == 1;
  const Index begin = repeats ? 0 : pairs.j0 / block_keys,
              end = repeats ? 1 : (pairs.j0 + pairs.nj - 1) / block_keys + 1;
  int both = 0;
  for (Index i = rows.begin; i < rows.end; ++i) {
    const std::uint8_t* of_row = row(pairs, i);
    for (Index block = begin; block < end && both != (kKept | kDropped); ++block) {
      both |= of_row[block / 4] >> (block % 4 * 2) & (kKept | kDropped);
    }
  }
  return both == kKept ? kTileFull : both == kDropped ? kTileEmpty : kTilePartial;
}

/// The first block from `block` on of which something is kept; `end`: none before it.
Index DenseSummary::next_in_row(const std::uint8_t* of_row, Index block, Index end) const {
  while (block < end) {
    const unsigned kept = (of_row[block / 4] & kKept * 0x55U) >> (block % 4 * 2);
    if (kept != 0) return std::min(end, block + __builtin_ctz(kept) / 2);
    block = (block / 4 + 1) * 4;
  }
  return end;
}

Index DenseSummary::next_key(const Pairs& from) const {
  if (row_blocks == 0) return from.j0;
  const Positions rows = row_blocks_of(from);
  const bool repeats = dense.values.size(3) == 1;
  const Index first = repeats ? 0 : from.j0 / block_keys;
  Index next = column_blocks;
  for (Index i = rows.begin; i < rows.end && next > first; ++i) next = next_in_row(row(from, i), first, next);
  if (next == column_blocks) return from.extent.kv_len;
  return repeats ? from.j0 : std::max(from.j0, next * block_keys);
}

std::size_t DenseSummaries::bytes(const Mask::Node* node) {
  const Index leaves = count_dense(node);
  std::size_t all = line_bytes<DenseSummary>(leaves);
  each_dense(node, [&](const DenseLeaf& leaf) { all += round_to_line(DenseSummary(leaf, limit_of(leaves)).bytes()); });
  return all;
}

const DenseSummaries* DenseSummaries::make(const Mask::Node* node, Context& context) {
  const Index leaves = count_dense(node);
  if (leaves == 0) return nullptr;
  memory_ = borrow_scratch(context, bytes(node));
  count_ = 0;
  auto* const first = memory_.as<DenseSummary>();
  auto* blocks = reinterpret_cast<std::uint8_t*>(memory_.data() + line_bytes<DenseSummary>(leaves));
  each_dense(node, [&](const DenseLeaf& leaf) {
    DenseSummary& summary = *new (first + count_++) DenseSummary(leaf, limit_of(leaves));
    summary.blocks = blocks;
    blocks += round_to_line(summary.bytes());
  });
  for (const DenseSummary& summary : std::span(first, static_cast<std::size_t>(leaves))) {
    const double flops = kByteFlops * static_cast<double>(summary.dense.values.count());
    run_items(context, {summary.items(), flops, 0}, [&summary](Index item, std::byte*) { summary.fill(item); });
  }
  summaries_ = first;
  return this;
}

}  // namespace qkv::inline v0
