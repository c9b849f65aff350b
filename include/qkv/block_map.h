// BlockMap: which blocks of queries x keys are alive, as compressed sparse rows. It is the input of block-sparse
// attention (Mask::blocks).
//
//   q_block = kv_block = 2, 8 tokens       row_begin = 0 1 3 5 7
//     1 1 . . . . . .                      columns   = 0 | 0 1 | 0 2 | 0 3
//     1 1 . . . . . .
//     1 1 1 1 . . . .                      Row r holds columns[row_begin[r] .. row_begin[r + 1]), ascending.
//     1 1 1 1 . . . .
//     1 1 . . 1 1 . .
//     1 1 . . 1 1 . .
//     1 1 . . . . 1 1
//     1 1 . . . . 1 1
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/export.h"
#include "qkv/types.h"

namespace qkv::inline v0 {

class Mask;

struct QKV_API BlockMap {
  Index q_block = 64, kv_block = 64;   ///< queries and keys per block; the last blocks may be smaller
  Index q_blocks = 0, kv_blocks = 0;   ///< ceil(Tq / q_block), ceil(Tk / kv_block)
  Index batch = 1, num_heads = 1;      ///< 1: the same map for all
  std::vector<Index> row_begin = {0};  ///< [batch * num_heads * q_blocks + 1], first 0
  std::vector<Index> columns;          ///< numbers of key blocks, ascending in each row

  Index live_blocks() const { return static_cast<Index>(columns.size()); }
  /// live_blocks() divided by the number of all blocks; 0 where there are none.
  double density() const;
};

/// The blocks in which a mask keeps any pair, for calls of these sizes (FlexAttention's create_block_mask). Pass it
/// together with the mask itself, Mask::blocks(map) & mask: a callback is then called in live blocks only. Throws what
/// a call would throw.
struct BlockMapSizes {
  Index batch = 1, num_heads = 1;  ///< 1 also where the mask is the same for all
  Index q_len = 0, kv_len = 0;
  Index q_block = 64, kv_block = 64;
};
QKV_API BlockMap block_map(const Mask& mask, const BlockMapSizes& sizes);

}  // namespace qkv::inline v0
