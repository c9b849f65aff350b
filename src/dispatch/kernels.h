// From an instruction set to its tables of kernels, and from a table to its part for an element type.
#pragma once

#include <type_traits>

#include "kernels/cache/params.h"
#include "kernels/capture/params.h"
#include "kernels/linear_attention/params.h"
#include "kernels/params.h"
#include "kernels/second_order/params.h"
#include "qkv/context.h"

namespace qkv::inline v0 {

/// One table for each src/kernels/*.cc.
struct KernelTables {
  const KernelTable& attention;
  const CacheTable& cache;
  const CaptureKernelTable& capture;
  const LinearAttentionTable& linear_attention;
  const SecondOrderTable& second_order;
};

/// `invariant`: those that give the bits of Bits::kInvariant. They multiply bf16 as floats, as rows of a cache are, and
/// fuse their multiply-adds. nn, lm and the tool are outside this library.
QKV_API const KernelTables& kernel_tables(Isa isa, bool invariant = false);
/// `bits`: of the call's own options.
inline bool is_invariant(const Context& context, Bits bits = Bits::kFast) {
  return bits == Bits::kInvariant || context.bits() == Bits::kInvariant;
}
inline const KernelTables& kernel_tables(const Context& context) {
  return kernel_tables(context.isa(), is_invariant(context));
}

constexpr bool has_bf16_products(Isa isa) { return isa == Isa::kAvx512Bf16 || isa == Isa::kAmx; }

/// The kernels of a table for sums of type Sum.
template <class Sum, class Table> const auto& for_element(const Table& table) {
  if constexpr (std::is_same_v<Sum, float>) {
    return table.f32;
  } else {
    return table.f64;
  }
}

/// The kernels for rows of type T: those whose sums are of its accumulation type.
template <class T> const Kernels<Accumulator<T>>& kernels_of(Isa isa) {
  return for_element<Accumulator<T>>(kernel_tables(isa).attention);
}

/// Parameters of row statistics besides a tile's; without sums there are none.
template <class Sum> struct ForwardStatistics {
  const CaptureKernels<Sum>* kernels = nullptr;
  const RowSums<Sum>* sums = nullptr;
  void* scratch = nullptr;
};

inline constexpr Index kMaxQueryTile = 256;  // no query tile holds more queries

/// Forward of a tile: by products of bf16 pairs where there are kernels of them and all rows are bf16. A matrix of
/// weights is then computed in float, by a second sweep.
template <class Sum> void run_forward(const Kernels<Sum>& kernels, const ForwardTile<Sum>& tile, void* scratch,
    const ForwardStatistics<Sum>& statistics = {}) {
  constexpr StoredType bf16 = StoredType::kBF16;
  const auto run = [&](const ForwardTile<Sum>& t, bool pairs) {
    if (statistics.sums == nullptr) {
      (pairs ? kernels.forward_pairs : kernels.forward)(t, scratch);
    } else {
      const CaptureKernels<Sum>& k = *statistics.kernels;
      (pairs ? k.forward_pairs : k.forward)(t, *statistics.sums, scratch, statistics.scratch);
    }
  };
  const bool pairs = kernels.forward_pairs != nullptr && tile.q.type == bf16 && tile.keys.type == bf16 &&
                     (tile.out.data == nullptr ? tile.weights == nullptr : tile.out.type == bf16);
  if (!pairs || tile.weights == nullptr) {
    run(tile, pairs);
    return;
  }
  ForwardTile<Sum> part = tile;
  part.weights = part.exponentials = nullptr;
  run(part, true);
  Sum unused_lse[kMaxQueryTile];
  part.weights = tile.weights;
  part.out.data = nullptr;
  part.lse = unused_lse;
  part.lse_low = part.row_max2 = part.row_sum = nullptr;
  kernels.forward(part, scratch);
}

/// Backward of a tile, and its rows' delta, by products of pairs where all rows are bf16.
template <class Sum> void run_backward(const Kernels<Sum>& kernels, const BackwardTile<Sum>& tile, void* scratch) {
  constexpr StoredType bf16 = StoredType::kBF16;
  const bool pairs = kernels.backward_pairs != nullptr && tile.q.type == bf16 && tile.dout.type == bf16 &&
                     tile.keys.type == bf16 && tile.keys.num_pages == 1;
  (pairs ? kernels.backward_pairs : kernels.backward)(tile, scratch);
}
template <class Sum> void run_delta(const Kernels<Sum>& kernels, const DeltaRows<Sum>& rows, void* scratch) {
  constexpr StoredType bf16 = StoredType::kBF16;
  const bool pairs = kernels.delta_pairs != nullptr && rows.out.type == bf16 && rows.dout.type == bf16;
  (pairs ? kernels.delta_pairs : kernels.delta)(rows, scratch);
}

/// AVX-512's table with the products of bf16 pairs that `products` holds.
inline KernelTable with_bf16_products(KernelTable avx512, const KernelTable& products) {
  avx512.f32.forward_scratch_bytes = products.f32.forward_scratch_bytes;
  avx512.f32.backward_scratch_bytes = products.f32.backward_scratch_bytes;
  avx512.f32.forward_pairs = products.f32.forward_pairs;
  avx512.f32.backward_pairs = products.f32.backward_pairs;
  avx512.f32.delta_pairs = products.f32.delta_pairs;
  avx512.layers.bf16_product = products.layers.bf16_product;
  avx512.peak.dot_bf16 = products.peak.dot_bf16;
  return avx512;
}

}  // namespace qkv::inline v0
