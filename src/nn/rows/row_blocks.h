// Rows in blocks whose size depends on the shape alone: the unit of work of everything here but matrix products.
#pragma once

#include <algorithm>

#include "core/threads/region.h"

namespace qkv::inline v0::nn {

struct RowBlocks {
  Index rows = 0;
  Index block = 1;
  double flops = 0;

  RowBlocks(Index num_rows, Index columns)
      : rows(num_rows), flops(kElementFlops * static_cast<double>(num_rows) * static_cast<double>(columns)) {
    constexpr Index kElements = 4096;  // a few microseconds of light work
    block = std::max<Index>(1, kElements / std::max<Index>(1, columns));
  }
  Index count() const { return (rows + block - 1) / block; }
};

/// Calls body(first row, one past the last, number of the block) for every block.
template <class Body> void for_row_blocks(Context& context, const RowBlocks& blocks, const Body& body) {
  parallel_for_flops(context, blocks.count(), blocks.flops,
      [&](Index item, int) { body(item * blocks.block, std::min(blocks.rows, (item + 1) * blocks.block), item); });
}

}  // namespace qkv::inline v0::nn
