#include "nn/products/linear_products.h"

#include <algorithm>
#include <array>

#include "core/cpu.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "dispatch/kernels.h"
#include "nn/rows/row_blocks.h"

namespace qkv::inline v0::nn {
namespace {

template <class T> double flops_of(const MatrixProduct<T>& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.depth);
}

/// Number of tiles for a region of `flops`: two per thread, so that a thread that starts late does not delay the others
/// long.
Index tiles_wanted(double flops, const Context& context) {
  return context.threads() == 1 || flops < context.impl().region_flops ? 1 : 2 * context.threads();
}

template <class T> const ProductKernels<T>& product_kernels(Isa isa, bool invariant) {
  const LayerKernels& layers = kernel_tables(isa, invariant).attention.layers;
  if constexpr (std::is_same_v<T, float>) {
    return layers.product;
  } else {
    return layers.bf16_product;
  }
}

/// One product cut into tiles. An element's sum does not depend on the cut (kernels/layers/matrix_product.h,
/// bf16_product.h).
template <class T> struct TiledProduct {
  MatrixProduct<T> whole{};
  const ProductKernels<T>* kernels = nullptr;
  bool by_rows = true;
  Index tile = 0;  // rows or columns per tile
  Index tiles = 0;

  TiledProduct(const MatrixProduct<T>& product, Index wanted, const Context& context) : whole(product) {
    whole.all_rows = whole.rows;
    whole.invariant |= is_invariant(context);
    whole.into_l2 = prefers_l2_prefetch();
    kernels = &product_kernels<T>(context.isa(), whole.invariant);
    if (whole.rows == 0 || whole.columns == 0) return;
    // A tile packs the part of B that it reads: with cut columns all tiles together pack B once, with cut rows each
    // tile packs it again. An A whose column stride is not 1 is packed the other way round.
    constexpr Index kNarrow = 128, kMultiple = 64;  // narrower tiles read A too often; 64 is whole panels on every ISA
    by_rows = whole.a_row == 1 || whole.columns < wanted * kNarrow;
    const Index length = by_rows ? whole.rows : whole.columns;
    tile = std::min(length, ((length + wanted - 1) / wanted + kMultiple - 1) / kMultiple * kMultiple);
    tiles = (length + tile - 1) / tile;
  }

  MatrixProduct<T> part(Index index) const {
    MatrixProduct<T> p = whole;
    const Index begin = index * tile;
    if (by_rows) {
      p.rows = std::min(tile, whole.rows - begin);
      p.a += begin * whole.a_row;
      move(p, begin * whole.c_row);
      if (p.a_sums != nullptr) p.a_sums += begin;
    } else {
      p.columns = std::min(tile, whole.columns - begin);
      if (p.b != nullptr) p.b += begin * whole.b_column;
      if (p.wide_b != nullptr) p.wide_b += begin * whole.b_column;
      move(p, begin);
      if (p.bias != nullptr) p.bias += begin;
    }
    return p;
  }
  std::size_t scratch_bytes() const { return tiles == 0 ? 0 : kernels->scratch_bytes(part(0)); }
  void run(Index index, void* scratch) const { kernels->run(part(index), scratch); }

 private:
  static void move(MatrixProduct<T>& p, Index elements) {
    if (p.c != nullptr) p.c += elements;
    if (p.sums != nullptr) p.sums += elements;
  }
};

/// The tiles of up to two products as one region.
template <class T>
void run_tiles(const std::array<const TiledProduct<T>*, 2>& products, double flops, Context& context) {
  const Index first = products[0]->tiles, all = first + products[1]->tiles;
  const std::size_t bytes = std::max(products[0]->scratch_bytes(), products[1]->scratch_bytes());
  const ScratchLease scratch = borrow_scratch(context, bytes * static_cast<std::size_t>(context.threads()));
  parallel_for_flops(context, all, flops, [&](Index tile, int worker) {
    std::byte* own = scratch.data() + static_cast<std::size_t>(worker) * bytes;
    tile < first ? products[0]->run(tile, own) : products[1]->run(tile - first, own);
  });
}

/// [T, E] of one sequence of [B, T, E].
template <class T> View<T, 2> sequence(View<T, 3> x, Index b) {
  return {x.data() + b * x.stride(0), {x.size(1), x.size(2)}, {x.stride(1), x.stride(2)}};
}

template <class T> Index weight_stride(const LinearWeights<T>& weights) {
  return weights.wide.is_null() ? row_stride(weights.weight) : row_stride(weights.wide);
}

/// Products over nothing, which kernels do not begin: each row is the bias, or 0.
template <class T> void fill_rows(View<T, 2> y, const float* bias) {
  for (Index m = 0; m < y.size(0); ++m) {
    for (Index n = 0; n < y.size(1); ++n) y(m, n) = static_cast<T>(bias == nullptr ? 0.0F : bias[n]);
  }
}
/// sums[n] += the sum of column n: a bias's gradient without its weight's.
template <class T> void add_columns(View<const T, 2> dy, float* sums) {
  for (Index n = 0; n < dy.size(1); ++n) {
    double sum = 0;
    for (Index m = 0; m < dy.size(0); ++m) sum += static_cast<double>(static_cast<float>(dy(m, n)));
    sums[n] += static_cast<float>(sum);
  }
}

template <class T> void forward(View<const T, 2> x, const LinearWeights<T>& weights, View<T, 2> y, Context& context) {
  if (x.size(1) == 0) return fill_rows(y, weights.bias);
  const MatrixProduct<T> product{.a = x.data(),
      .b = weights.weight.data(),
      .wide_b = weights.wide.data(),
      .bias = weights.bias,
      .c = y.data(),
      .rows = y.size(0),
      .columns = y.size(1),
      .depth = x.size(1),
      .a_row = row_stride(x),
      .a_depth = 1,
      .b_row = 1,
      .b_column = weight_stride(weights),
      .c_row = row_stride(y),
      .invariant = weights.invariant};
  const double flops = flops_of(product);
  const TiledProduct<T> tiled(product, tiles_wanted(flops, context), context), none({}, 1, context);
  run_tiles<T>({&tiled, &none}, flops, context);
}

template <class T> void backward(View<const T, 2> x, View<const T, 2> dy, const LinearWeights<T>& weights,
    View<T, 2> dx, const LinearGradients& gradients, Context& context) {
  const Index m = dy.size(0);
  const Index n = dy.size(1);
  const Index k = weights.columns();
  if (m == 0) return;
  if (n == 0 && !dx.is_null()) fill_rows(dx, nullptr);
  if (gradients.dbias != nullptr && (gradients.dweight.is_null() || k == 0)) add_columns(dy, gradients.dbias);
  const MatrixProduct<T> to_weights{.a = dy.data(),
      .b = x.data(),
      .sums = gradients.dweight.data(),
      .rows = gradients.dweight.is_null() ? 0 : n,
      .columns = k,
      .depth = m,
      .a_row = 1,
      .a_depth = row_stride(dy),
      .b_row = row_stride(x),
      .b_column = 1,
      .c_row = row_stride(gradients.dweight),
      .a_sums = gradients.dbias};
  const MatrixProduct<T> to_inputs{.a = dy.data(),
      .b = weights.weight.data(),
      .wide_b = weights.wide.data(),
      .c = dx.data(),
      .rows = dx.is_null() ? 0 : m,
      .columns = k,
      .depth = n,
      .a_row = row_stride(dy),
      .a_depth = 1,
      .b_row = weight_stride(weights),
      .b_column = 1,
      .c_row = row_stride(dx)};
  const double flops = flops_of(to_weights) + flops_of(to_inputs);
  const Index wanted = tiles_wanted(flops, context);
  const TiledProduct<T> dweight(to_weights, wanted, context), dinput(to_inputs, wanted, context);
  run_tiles<T>({&dweight, &dinput}, flops, context);
}

/// Copies of rows as another type, by the kernel that stores rows of caches.
template <class From, class To> void convert_rows(View<const From, 2> from, View<To, 2> to, Context& context) {
  const auto& store = kernel_tables(context).cache.store;
  for_row_blocks(context, {from.size(0), from.size(1)}, [&](Index begin, Index end, Index) {
    store({.from = from.data() + begin * from.stride(0),
        .from_type = stored_as<From>(),
        .to = to.data() + begin * to.stride(0),
        .to_type = stored_as<To>(),
        .scales = nullptr,
        .from_stride = from.stride(0),
        .to_stride = to.stride(0),
        .count = end - begin,
        .width = from.size(1)});
  });
}

/// Float copies of bf16 views in one allocation of scratch memory, where pairs of bf16 are not multiplied.
class WideRows {
 public:
  WideRows(Index floats, Context& context)
      : context_(context), lease_(borrow_scratch(context, static_cast<std::size_t>(floats) * sizeof(float))) {}

  View<float, 2> room_for(const View<float, 2>::Sizes& sizes) {
    const View<float, 2> room(lease_.as<float>() + used_, sizes);
    used_ += room.count();
    return room;
  }
  View<const float, 2> widened(View<const BFloat16, 2> rows) {
    const View<float, 2> wide = room_for(rows.sizes());
    convert_rows<BFloat16>(rows, wide, context_);
    return wide;
  }
  /// Weights, rounded to bf16 where they are floats.
  View<const float, 2> widened(const LinearWeights<BFloat16>& weights) {
    if (weights.wide.is_null()) return widened(weights.weight);
    const View<float, 2> rounded = room_for(weights.wide.sizes());
    for_row_blocks(context_, {rounded.size(0), rounded.size(1)}, [&](Index begin, Index end, Index) {
      for (Index m = begin; m < end; ++m) {
        for (Index e = 0; e < rounded.size(1); ++e) rounded(m, e) = static_cast<float>(BFloat16(weights.wide(m, e)));
      }
    });
    return rounded;
  }

 private:
  Context& context_;
  ScratchLease lease_;
  Index used_ = 0;
};

/// Pairs are summed otherwise than floats, and not every CPU multiplies them.
bool multiplies_pairs(const LinearWeights<BFloat16>& weights, const Context& context) {
  return has_bf16_products(context.isa()) && !weights.invariant && !is_invariant(context);
}

void forward_widened(
    View<const BFloat16, 2> x, const LinearWeights<BFloat16>& weights, View<BFloat16, 2> y, Context& context) {
  WideRows wide(x.count() + y.size(1) * x.size(1) + y.count(), context);
  const View<float, 2> sums = wide.room_for(y.sizes());
  const View<const float, 2> weight = wide.widened(weights);
  forward<float>(wide.widened(x), {weight, weights.bias, {}, weights.invariant}, sums, context);
  convert_rows<float>(sums, y, context);
}

void backward_widened(View<const BFloat16, 2> x, View<const BFloat16, 2> dy, const LinearWeights<BFloat16>& weights,
    View<BFloat16, 2> dx, const LinearGradients& gradients, Context& context) {
  WideRows wide(x.count() + dy.count() + dy.size(1) * x.size(1) + dx.count(), context);
  const View<const float, 2> wide_x = wide.widened(x), wide_dy = wide.widened(dy), weight = wide.widened(weights);
  const View<float, 2> sums = dx.is_null() ? View<float, 2>() : wide.room_for(dx.sizes());
  backward<float>(wide_x, wide_dy, {weight, nullptr}, sums, gradients, context);
  if (!dx.is_null()) convert_rows<float>(sums, dx, context);
}

}  // namespace

void linear_forward(View<const float, 2> x, const LinearWeights<float>& weights, View<float, 2> y, Context& context) {
  forward(x, weights, y, context);
}
void linear_backward(View<const float, 2> x, View<const float, 2> dy, const LinearWeights<float>& weights,
    View<float, 2> dx, const LinearGradients& gradients, Context& context) {
  backward(x, dy, weights, dx, gradients, context);
}

void linear_forward(
    View<const BFloat16, 2> x, const LinearWeights<BFloat16>& weights, View<BFloat16, 2> y, Context& context) {
  multiplies_pairs(weights, context) ? forward(x, weights, y, context) : forward_widened(x, weights, y, context);
}
void linear_backward(View<const BFloat16, 2> x, View<const BFloat16, 2> dy, const LinearWeights<BFloat16>& weights,
    View<BFloat16, 2> dx, const LinearGradients& gradients, Context& context) {
  multiplies_pairs(weights, context) ? backward(x, dy, weights, dx, gradients, context)
                                     : backward_widened(x, dy, weights, dx, gradients, context);
}

#define QKV_DEFINE(T)                                                                                                  \
  void linear_forward(View<const T, 3> x, const LinearWeights<T>& weights, View<T, 3> y, Context& context) {           \
    if (has_plain_rows(x) && has_plain_rows(y)) return linear_forward(plain_rows(x), weights, plain_rows(y), context); \
    for (Index b = 0; b < x.size(0); ++b) linear_forward(sequence(x, b), weights, sequence(y, b), context);            \
  }                                                                                                                    \
  void linear_backward(View<const T, 3> x, View<const T, 3> dy, const LinearWeights<T>& weights, View<T, 3> dx,        \
      const LinearGradients& gradients, Context& context) {                                                            \
    if (has_plain_rows(x) && has_plain_rows(dy) && has_plain_rows(dx)) {                                               \
      return linear_backward(plain_rows(x), plain_rows(dy), weights, plain_rows(dx), gradients, context);              \
    }                                                                                                                  \
    for (Index b = 0; b < x.size(0); ++b) {                                                                            \
      linear_backward(sequence(x, b), sequence(dy, b), weights, dx.is_null() ? View<T, 2>() : sequence(dx, b),         \
          gradients, context);                                                                                         \
    }                                                                                                                  \
  }
QKV_DEFINE(float)
QKV_DEFINE(BFloat16)
#undef QKV_DEFINE

}  // namespace qkv::inline v0::nn
