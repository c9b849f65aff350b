// Forward attention of a checked call, dense or ragged, on tensors or on a cache, with all its keys or some of them:
// every work item in one region.
#pragma once

#include "attention/call/batch.h"
#include "attention/capture/capture.h"

namespace qkv::inline v0 {

/// Query tiles that meet their keys in several calls: their rows between the calls, those of tile n from n * strips()
/// on, where tile t of head h of sequence b has the number (b * H + h) * tiles + t.
template <class Sum> struct CarriedTiles {
  CarriedRows<Sum> rows;         // of tile 0; `overflown` null: keys follow
  const std::uint8_t* wanted;    // [tiles]: whether a tile is computed
  Index tile_rows, tile_strips;  // of the largest tile
  Sum *total_max, *total_sum;    // [tiles][tile_rows]: of all keys and the sink, written at the end; null: not wanted

  CarriedRows<Sum> of(Index tile, Index v_head_dim) const {
    CarriedRows<Sum> of_tile = rows;
    const Index row = tile * tile_rows, strip = tile * tile_strips;
    if (of_tile.out != nullptr) of_tile.out += row * v_head_dim;
    of_tile.row_max += row;
    of_tile.row_sum += row;
    of_tile.attended += strip;
    of_tile.by_maximum += strip;
    if (of_tile.overflown != nullptr) of_tile.overflown += strip;
    return of_tile;
  }
};

/// In a ragged batch the tensors of all tokens are one sequence, [1, H, total, ...], and weights are [1, 1, 1, count]:
/// [H, Tq, Tk] of each sequence, one after the other.
/// `capture`: null if nothing is captured. `carried`: null: all keys are here; otherwise tiles compute the call.
template <class Sum> void forward_batch(const Batch& batch, const Outputs& outputs, CaptureJob<Sum>* capture,
    Context& context, const CarriedTiles<Sum>* carried = nullptr);

}  // namespace qkv::inline v0
