// A cell as every format needs it: its weight, and which ink is readable on its colour.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// The largest weight of the block of rows x columns that starts at (row, column), clipped to the map; NaN when all of
/// them are.
inline float largest_weight(View<const float, 4> weights,  // [L, H, Tq, Tk]
    Index layer, Index head, Index row, Index column, Index rows, Index columns) {
  float largest = std::numeric_limits<float>::quiet_NaN();
  for (Index i = row; i < std::min(row + rows, weights.size(2)); ++i) {
    for (Index j = column; j < std::min(column + columns, weights.size(3)); ++j) {
      largest = std::fmax(largest, weights(layer, head, i, j));
    }
  }
  return largest;
}

/// Whether white is more readable than black on it: luma of ITU-R BT.601, times 1000.
inline bool is_dark(Rgb c) { return 299 * c.red + 587 * c.green + 114 * c.blue < 140'000; }

}  // namespace qkv::inline v0::view
