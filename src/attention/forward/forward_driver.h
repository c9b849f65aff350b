// Forward attention of a checked call, dense or ragged, on tensors or on a cache, with all its keys or some of them: every work
// item in one region.
#pragma once

#include "attention/call/batch.h"
#include "attention/capture/capture.h"

namespace qkv::inline v0 {

/// Query tiles that meet their keys in several calls: their rows between the calls, those of tile n from n * strips() on, where tile
/// t of head h of sequence b has the number (b * H + h) * tiles + t.
template <class T>
struct CarriedTiles {
  using Sum = Accumulator<T>;
  CarriedRows<Sum> rows;         // of tile 0; `overflown` null: keys follow
  const std::uint8_t* wanted;    // [tiles]: whether a tile is computed
  Index tile_rows, tile_strips;  // of the largest tile

  CarriedRows<Sum> of(Index tile, Index v_head_dim) const {
    CarriedRows<Sum> its = rows;
    const Index row = tile * tile_rows, strip = tile * tile_strips;
    if (its.out != nullptr) its.out += row * v_head_dim;
    its.row_max += row;
    its.row_sum += row;
    its.seen += strip;
    its.by_maximum += strip;
    if (its.overflown != nullptr) its.overflown += strip;
    return its;
  }
};

/// In a ragged batch the tensors of all tokens are one sequence, [1, H, total, ...], and weights are [1, 1, 1, count]:
/// [H, Tq, Tk] of each sequence, one after the other.
/// `capture`: null if nothing is captured. `carried`: null: all keys are here; otherwise tiles compute the call.
template <class T>
void forward_batch(const Batch<T>& batch, const AttentionOutputs<T>& outputs, CaptureJob<T>* capture, Context& context,
                   const CarriedTiles<T>* carried = nullptr);

}  // namespace qkv::inline v0
