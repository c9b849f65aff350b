// What a Mask is made of: a conjunction of leaves. And how a call asks it: key by key, tile by tile, or for the keys a row
// range can reach. Positions decide bands and lengths in O(1); dense tensors are read. Not: the public constructors (mask.cc),
// unions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "qkv/mask.h"

namespace qkv {
inline namespace v0 {

/// keep = c - left <= j <= c + right, c = i + offset; -1 is unbounded. causal() is the band (-1, 0).
struct Band {
  Index left, right;
  Align align;
  std::shared_ptr<const std::vector<Index>> offsets;  // [B]; null: the alignment says
  bool causal;                                        // how it was written, for texts
};

struct KeyLengths {
  std::shared_ptr<const std::vector<Index>> lengths;  // [B]
};

struct Dense {
  View<const std::uint8_t, 4> values;  // [B|1, H|1, Tq|1, Tk|1]
  bool keep;                           // non-zero means kept; otherwise dropped
};

struct Mask::Node {
  std::vector<Band> bands;
  std::vector<KeyLengths> lengths;
  std::vector<Dense> dense;
};

/// The sizes that a mask is asked about.
struct MaskExtent {
  Index batch, num_heads, q_len, kv_len;
};

/// Throws ShapeError or OptionError where the mask does not fit the sizes.
void check_mask(const Mask& mask, const MaskExtent& extent, const char* function);

/// A mask together with the sizes of one call. Refers to both; make it for the call.
struct BoundMask {
  const Mask::Node* node;  // null: everything is kept
  MaskExtent extent;
};

/// keep(b, h, i, j).
bool mask_keeps(const BoundMask& mask, Index b, Index h, Index i, Index j);

/// The functions of kernels' TileMask; `mask` points at a BoundMask.
int mask_tile(const void* mask, Index b, Index h, Index i0, Index ni, Index j0, Index nj, std::uint32_t* words);
void mask_key_range(const void* mask, Index b, Index h, Index i0, Index ni, Index* begin, Index* end);

/// Queries [begin, end) that may attend any of keys [j0, j0 + nj), conservatively.
void mask_query_range(const BoundMask& mask, Index b, Index h, Index j0, Index nj, Index* begin, Index* end);

}  // namespace v0
}  // namespace qkv
