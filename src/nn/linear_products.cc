#include "nn/linear_products.h"

#include <algorithm>
#include <array>

#include "core/region.h"
#include "dispatch/kernels.h"
#include "nn/matmul.h"

namespace qkv {
inline namespace v0 {
namespace nn {
namespace {

constexpr Index kTilesWanted = 8;    // enough for eight threads
constexpr double kTileFlops = 5e5;   // about 4 us: below, handing a tile to another thread costs more than it saves
constexpr Index kTileMultiple = 16;  // rows or columns of whole vector registers

/// Rows of a tile when `rows` x `columns` outputs are cut along the rows. A function of the shape only.
Index tile_rows(Index rows, Index columns, Index inner) {
  const double row_flops = 2.0 * static_cast<double>(columns) * static_cast<double>(inner);
  const auto fewest = static_cast<Index>(kTileFlops / std::max(row_flops, 1.0)) + 1;
  const Index even = (rows + kTilesWanted - 1) / kTilesWanted;
  const Index tile = std::max(even, fewest);
  return std::min(rows, (tile + kTileMultiple - 1) / kTileMultiple * kTileMultiple);
}

/// Products of at most this many flops (some 60 us) take the own kernel: oneDNN spends 3 to 5 ms on a shape's first use, and
/// each of its calls up to a microsecond on itself.
constexpr double kSmallFlops = 8e6;

double flops_of(const MatmulShape& shape) {
  return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * static_cast<double>(shape.inner);
}

bool is_small(const MatmulShape& shape, const SmallKernels& kernels) {
  return flops_of(shape) <= kSmallFlops && (shape.b_column_stride == 1 || kernels.fits(shape.inner, shape.columns));
}

/// C [M, N] = or += A B cut in tiles along its longer axis; shape holds the whole product's sizes and strides.
struct TiledProduct {
  MatmulShape shape;
  const float* a = nullptr;
  const float* b = nullptr;
  const float* bias = nullptr;
  float* c = nullptr;
  bool by_rows = true;
  Index tile = 0;
  Index tiles = 0;
  const SmallKernels* small = nullptr;  // null: oneDNN

  TiledProduct(const MatmulShape& whole, const float* a_data, const float* b_data, const float* bias_data, float* c_data,
               bool cut_rows, const Context& context)
      : shape(whole), a(a_data), b(b_data), bias(bias_data), c(c_data), by_rows(cut_rows) {
    const SmallKernels& kernels = kernel_table(context.isa()).small;
    if (is_small(shape, kernels)) small = &kernels;
    if (shape.rows == 0 || shape.columns == 0 || shape.inner == 0) return;
    tile = by_rows ? tile_rows(shape.rows, shape.columns, shape.inner) : tile_rows(shape.columns, shape.rows, shape.inner);
    tiles = ((by_rows ? shape.rows : shape.columns) + tile - 1) / tile;
  }

  /// First row or column of a tile, and one past its last.
  std::array<Index, 2> range(Index index) const {
    return {index * tile, std::min((index + 1) * tile, by_rows ? shape.rows : shape.columns)};
  }

  void run(Index index) const {
    const auto [begin, end] = range(index);
    MatmulShape part = shape;
    (by_rows ? part.rows : part.columns) = end - begin;
    const Index row = by_rows ? begin : 0;
    const Index column = by_rows ? 0 : begin;
    const float* part_bias = bias == nullptr ? nullptr : bias + column;
    if (small == nullptr) {
      held_matmul(part)->run(a + row * shape.a_row_stride, b + column * shape.b_column_stride, part_bias,
                             c + row * shape.c_row_stride + column);
      return;
    }
    small->product({.a = a + row * shape.a_row_stride,
                    .b = b + column * shape.b_column_stride,
                    .bias = part_bias,
                    .c = c + row * shape.c_row_stride + column,
                    .rows = part.rows,
                    .columns = part.columns,
                    .depth = part.inner,
                    .a_row = shape.a_row_stride,
                    .a_depth = shape.a_column_stride,
                    .b_row = shape.b_row_stride,
                    .b_column = shape.b_column_stride,
                    .c_row = shape.c_row_stride,
                    .accumulate = shape.accumulate});
  }
};

/// What a product is told of rows: a single one may have any stride, which oneDNN would refuse.
template <class T>
Index row_stride(View<T, 2> rows) {
  return rows.size(0) > 1 ? rows.stride(0) : std::max<Index>(rows.size(1), 1);
}

/// dbias[n] += sum over m of dy[m, n] for columns [begin, end). Blocks of rows are summed first: the error grows with
/// block + M / block terms instead of M.
void add_column_sums(View<const float, 2> dy, Index begin, Index end, float* dbias) {
  constexpr Index kBlockRows = 64;
  constexpr Index kBlockColumns = 64;
  for (Index n0 = begin; n0 < end; n0 += kBlockColumns) {
    const Index width = std::min(kBlockColumns, end - n0);
    std::array<float, kBlockColumns> total{};
    for (Index m0 = 0; m0 < dy.size(0); m0 += kBlockRows) {
      std::array<float, kBlockColumns> block{};
      for (Index m = m0; m < std::min(m0 + kBlockRows, dy.size(0)); ++m) {
        const float* row = dy.data() + m * dy.stride(0) + n0;
        for (Index n = 0; n < width; ++n) block[static_cast<std::size_t>(n)] += row[n];
      }
      for (std::size_t n = 0; n < kBlockColumns; ++n) total[n] += block[n];
    }
    for (Index n = 0; n < width; ++n) dbias[n0 + n] += total[static_cast<std::size_t>(n)];
  }
}

/// [T, E] of one sequence of [B, T, E].
template <class T>
View<T, 2> sequence(View<T, 3> x, Index b) {
  return {x.data() + b * x.stride(0), {x.size(1), x.size(2)}, {x.stride(1), x.stride(2)}};
}

}  // namespace

void linear_forward(View<const float, 2> x, const LinearWeights& weights, View<float, 2> y, Context& context) {
  const Index m = y.size(0);
  const Index n = y.size(1);
  const MatmulShape shape{.rows = m,
                          .columns = n,
                          .inner = x.size(1),
                          .a_row_stride = row_stride(x),
                          .b_row_stride = 1,
                          .b_column_stride = row_stride(weights.weight),
                          .c_row_stride = row_stride(y),
                          .bias = weights.bias != nullptr};
  const TiledProduct product(shape, x.data(), weights.weight.data(), weights.bias, y.data(), m >= n, context);
  parallel_for_flops(context, product.tiles, flops_of(shape), [&](Index tile, int) { product.run(tile); });
}

void linear_backward(View<const float, 2> x, View<const float, 2> dy, const LinearWeights& weights, View<float, 2> dx,
                     const LinearGradients& gradients, Context& context) {
  const Index m = dy.size(0);
  const Index n = dy.size(1);
  const Index k = weights.weight.size(1);
  if (m == 0) return;
  const MatmulShape to_weights{.rows = n,
                               .columns = k,
                               .inner = m,
                               .a_row_stride = 1,
                               .a_column_stride = row_stride(dy),
                               .b_row_stride = row_stride(x),
                               .c_row_stride = row_stride(gradients.dweight),
                               .accumulate = true};
  const TiledProduct dweight(to_weights, dy.data(), x.data(), nullptr, gradients.dweight.data(), true, context);
  const MatmulShape to_inputs{.rows = dx.is_null() ? 0 : m,
                              .columns = k,
                              .inner = n,
                              .a_row_stride = row_stride(dy),
                              .b_row_stride = row_stride(weights.weight),
                              .c_row_stride = row_stride(dx)};
  const TiledProduct dinput(to_inputs, dy.data(), weights.weight.data(), nullptr, dx.data(), m >= k, context);
  parallel_for_flops(context, dweight.tiles + dinput.tiles, flops_of(to_weights) + flops_of(to_inputs), [&](Index tile, int) {
    if (tile >= dweight.tiles) return dinput.run(tile - dweight.tiles);
    dweight.run(tile);
    const auto [begin, end] = dweight.range(tile);
    if (gradients.dbias != nullptr) add_column_sums(dy, begin, end, gradients.dbias);
  });
}

void linear_forward(View<const float, 3> x, const LinearWeights& weights, View<float, 3> y, Context& context) {
  if (has_plain_rows(x) && has_plain_rows(y)) return linear_forward(plain_rows(x), weights, plain_rows(y), context);
  for (Index b = 0; b < x.size(0); ++b) linear_forward(sequence(x, b), weights, sequence(y, b), context);
}

void linear_backward(View<const float, 3> x, View<const float, 3> dy, const LinearWeights& weights, View<float, 3> dx,
                     const LinearGradients& gradients, Context& context) {
  if (has_plain_rows(x) && has_plain_rows(dy) && has_plain_rows(dx)) {
    return linear_backward(plain_rows(x), plain_rows(dy), weights, plain_rows(dx), gradients, context);
  }
  for (Index b = 0; b < x.size(0); ++b) {
    linear_backward(sequence(x, b), sequence(dy, b), weights, dx.is_null() ? View<float, 2>() : sequence(dx, b), gradients,
                    context);
  }
}

}  // namespace nn
}  // namespace v0
}  // namespace qkv
