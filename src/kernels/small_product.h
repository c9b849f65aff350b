// The matrix product of layers so small that a matrix library's call costs more than the work: attention's micro-kernel on
// plain rows. Not: large products (oneDNN, nn/matmul.h), threads.
#pragma once

#include "kernels/gemm.h"
#include "kernels/tiles.h"
#include "simd/transpose.h"

namespace qkv {
namespace {

constexpr Index kSmallPanel = 8192;  // floats of a packed B: 32 KiB, on the stack

inline Index small_panel_width(Index columns) { return round_up(columns, Simd<float>::kLanes); }

inline bool small_product_fits(Index depth, Index columns) { return depth * small_panel_width(columns) <= kSmallPanel; }

inline void small_product(const SmallProduct& t) {
  alignas(64) float panel[kSmallPanel];
  Product<float> p{.a = t.a,
                   .a_row = t.a_row,
                   .a_depth = t.a_depth,
                   .b = t.b,
                   .b_row = t.b_row,
                   .c = t.c,
                   .c_row = t.c_row,
                   .depth = t.depth,
                   .factor = t.bias};
  if (t.b_column != 1) {
    p.b = panel;
    p.b_row = small_panel_width(t.columns);
    pack_transposed<float>(t.b, t.b_column, t.columns, t.depth, 1.0f, panel, p.b_row);
  }
  if (t.accumulate) {
    product<float, Store::kAdd>(p, t.rows, t.columns);
  } else if (t.bias != nullptr) {
    product<float, Store::kBias>(p, t.rows, t.columns);
  } else {
    product<float, Store::kSet>(p, t.rows, t.columns);
  }
}

}  // namespace
}  // namespace qkv
