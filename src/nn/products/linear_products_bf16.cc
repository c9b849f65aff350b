// The bf16 products of linear_products.h: oneDNN in tiles; or rows widened to f32 in scratch memory, the f32 products, and the
// result rounded. Widening and rounding are passes over M K + N K + M N numbers, beside 2 M N K operations.
#include <array>

#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "nn/products/linear_products.h"
#include "nn/products/matmul.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

constexpr Index kTilesWanted = 8;    // enough for eight threads
constexpr double kTileFlops = 5e5;   // about 4 us: less work than that costs more to hand to another thread than it saves
constexpr Index kTileMultiple = 16;  // rows of whole vector registers

/// Rows of a tile of C [rows, columns]: a function of the shape only, since oneDNN may sum tiles of another size in another
/// order.
Index tile_rows(const MatmulShape& shape) {
  const double row_flops = 2.0 * static_cast<double>(shape.columns) * static_cast<double>(shape.inner);
  const auto fewest = static_cast<Index>(kTileFlops / std::max(row_flops, 1.0)) + 1;
  const Index tile = std::max((shape.rows + kTilesWanted - 1) / kTilesWanted, fewest);
  return std::min(shape.rows, (tile + kTileMultiple - 1) / kTileMultiple * kTileMultiple);
}

/// C = A B (+ bias) or C += A B in tiles of rows. body(first row, one past the last) runs after each.
template <class Body>
void run_tiles(const MatmulShape& shape, const BFloat16* a, const BFloat16* b, const float* bias, void* c, Context& context,
               const Body& body) {
  if (shape.rows == 0 || shape.columns == 0 || shape.inner == 0) return;
  const Index tile = tile_rows(shape);
  const Index element = shape.accumulate ? Index{sizeof(float)} : Index{sizeof(BFloat16)};
  const double flops =
      2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * static_cast<double>(shape.inner);
  parallel_for_flops(context, (shape.rows + tile - 1) / tile, flops, [&](Index item, int) {
    const Index begin = item * tile, end = std::min(begin + tile, shape.rows);
    MatmulShape part = shape;
    part.rows = end - begin;
    std::byte* rows = static_cast<std::byte*>(c) + begin * shape.c_row_stride * element;
    held_matmul(part)->run(a + begin * shape.a_row_stride, b, bias, rows);
    body(begin, end);
  });
}

/// dbias[n] += sum over m of dy[m, n] for columns [begin, end). Blocks of rows are summed first, so that the error grows with
/// block + M / block terms instead of M.
void add_column_sums(View<const BFloat16, 2> dy, Index begin, Index end, float* dbias) {
  constexpr Index kBlockRows = 64;
  constexpr Index kBlockColumns = 64;
  for (Index n0 = begin; n0 < end; n0 += kBlockColumns) {
    const Index width = std::min(kBlockColumns, end - n0);
    std::array<float, kBlockColumns> total{};
    for (Index m0 = 0; m0 < dy.size(0); m0 += kBlockRows) {
      std::array<float, kBlockColumns> block{};
      for (Index m = m0; m < std::min(m0 + kBlockRows, dy.size(0)); ++m) {
        const BFloat16* row = dy.data() + m * dy.stride(0) + n0;
        for (Index n = 0; n < width; ++n) block[static_cast<std::size_t>(n)] += static_cast<float>(row[n]);
      }
      for (std::size_t n = 0; n < kBlockColumns; ++n) total[n] += block[n];
    }
    for (Index n = 0; n < width; ++n) dbias[n0 + n] += total[static_cast<std::size_t>(n)];
  }
}

bool by_onednn(Bf16Products products) {
  return products == Bf16Products::kOneDnn || (products == Bf16Products::kAutomatic && has_native_bf16_matmul());
}

template <class From, class To>
void convert_rows(View<const From, 2> from, View<To, 2> to, Context& context) {
  for_row_blocks(context, {from.size(0), from.size(1)}, [&](Index begin, Index end, Index) {
    for (Index m = begin; m < end; ++m) {
      const From* source = from.data() + m * from.stride(0);
      To* target = to.data() + m * to.stride(0);
      for (Index e = 0; e < from.size(1); ++e) target[e] = static_cast<To>(source[e]);
    }
  });
}

/// Float copies of views in one allocation of scratch memory.
class WideRows {
 public:
  WideRows(Index floats, Context& context)
      : context_(context), lease_(borrow_scratch(context, static_cast<std::size_t>(floats) * sizeof(float))) {}

  View<float, 2> room_for(View<const BFloat16, 2> rows) {
    const View<float, 2> room(lease_.as<float>() + used_, rows.sizes());
    used_ += rows.count();
    return room;
  }
  View<const float, 2> widened(View<const BFloat16, 2> rows) {
    const View<float, 2> wide = room_for(rows);
    convert_rows(rows, wide, context_);
    return wide;
  }

 private:
  Context& context_;
  ScratchLease lease_;
  Index used_ = 0;
};

}  // namespace

void linear_forward(View<const BFloat16, 2> x, const Bf16Weights& weights, View<BFloat16, 2> y, Context& context,
                    Bf16Products products) {
  if (by_onednn(products)) {
    const MatmulShape shape{.rows = y.size(0),
                            .columns = y.size(1),
                            .inner = x.size(1),
                            .a_row_stride = row_stride(x),
                            .b_row_stride = 1,
                            .b_column_stride = row_stride(weights.weight),
                            .c_row_stride = row_stride(y),
                            .bias = weights.bias != nullptr};
    run_tiles(shape, x.data(), weights.weight.data(), weights.bias, y.data(), context, [](Index, Index) {});
    return;
  }
  WideRows wide(x.count() + weights.weight.count() + y.count(), context);
  const View<float, 2> sums = wide.room_for(y);
  const View<const float, 2> weight = wide.widened(weights.weight);
  linear_forward(wide.widened(x), LinearWeights{weight, weights.bias}, sums, context);
  convert_rows<float, BFloat16>(sums, y, context);
}

void linear_backward(View<const BFloat16, 2> x, View<const BFloat16, 2> dy, const Bf16Weights& weights, View<BFloat16, 2> dx,
                     const LinearGradients& gradients, Context& context, Bf16Products products) {
  const Index m = dy.size(0), n = dy.size(1), k = weights.weight.size(1);
  if (m == 0) return;
  if (by_onednn(products)) {
    const MatmulShape to_weights{.rows = n,
                                 .columns = k,
                                 .inner = m,
                                 .a_row_stride = 1,
                                 .a_column_stride = row_stride(dy),
                                 .b_row_stride = row_stride(x),
                                 .c_row_stride = row_stride(gradients.dweight),
                                 .accumulate = true};
    run_tiles(to_weights, dy.data(), x.data(), nullptr, gradients.dweight.data(), context, [&](Index begin, Index end) {
      if (gradients.dbias != nullptr) add_column_sums(dy, begin, end, gradients.dbias);
    });
    const MatmulShape to_inputs{.rows = dx.is_null() ? 0 : m,
                                .columns = k,
                                .inner = n,
                                .a_row_stride = row_stride(dy),
                                .b_row_stride = row_stride(weights.weight),
                                .c_row_stride = row_stride(dx)};
    run_tiles(to_inputs, dy.data(), weights.weight.data(), nullptr, dx.data(), context, [](Index, Index) {});
    return;
  }
  WideRows wide(x.count() + dy.count() + weights.weight.count() + dx.count(), context);
  const View<const float, 2> wide_x = wide.widened(x), wide_dy = wide.widened(dy), weight = wide.widened(weights.weight);
  const View<float, 2> sums = dx.is_null() ? View<float, 2>() : wide.room_for(dx);
  linear_backward(wide_x, wide_dy, LinearWeights{weight, nullptr}, sums, gradients, context);
  if (!dx.is_null()) convert_rows<float, BFloat16>(sums, dx, context);
}

}  // namespace qkv::inline v0::nn
