// The callback score_mod as kernels call it: what it throws is kept (core/threads/callback_error.h).
#pragma once

#include "core/check.h"
#include "core/threads/callback_error.h"
#include "kernels/params.h"
#include "qkv/score_mod.h"

namespace qkv::inline v0 {

/// The function behind the kernels' TileScoreMod; `mod` points at a ScoreMod.
template <class Sum> void score_mod_tile(const void* mod, Index batch, Index head, Index i0, Index ni, Index j0,
    Index nj, Sum* scores, Index row, Index column, Sum* slopes, Index slope_row, Index slope_column) {
  guard_callback([&] {
    const ScoreMod& callback = *static_cast<const ScoreMod*>(mod);
    ScoreBlock<Sum> block{batch, head, i0, j0, View<Sum, 2>(scores, {ni, nj}, {row, column}), {}};
    if (slopes != nullptr) block.slopes = View<Sum, 2>(slopes, {ni, nj}, {slope_row, slope_column});
    callback.apply(block);
  });
}

}  // namespace qkv::inline v0
