// The values of an attention layer's forward between its two projections: kept for backward or, where nothing is kept,
// borrowed from the context, so that no call touches new memory.
#pragma once

#include <algorithm>

#include "core/threads/scratch.h"
#include "kernels/carver.h"
#include "qkv/nn/layer.h"

namespace qkv::inline v0::nn {

template <class T> struct ForwardRows {
  View<T, 3> projected, attended;  // [B, T, P], [B, T, W]
  View<float, 3> lse, lse_low;     // [B, H, T]; lse_low only for backward

  /// Tensors of `saved`, whose contents stay where their sizes fit; null: borrowed, not cleared.
  ForwardRows(SavedOf<T>* saved, const typename View<T, 3>::Sizes& projected_sizes, Index width, Index num_heads,
      Context& context) {
    const Index batch = projected_sizes[0], length = projected_sizes[1], columns = projected_sizes[2];
    if (saved != nullptr) {
      resize(saved->projected, projected_sizes);
      resize(saved->attended, std::array{batch, length, width});
      resize(saved->lse, std::array{batch, num_heads, length});
      resize(saved->lse_low, std::array{batch, num_heads, length});
      projected = saved->projected, attended = saved->attended, lse = saved->lse, lse_low = saved->lse_low;
      return;
    }
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      projected = {carver.array<T>(batch * length * columns), projected_sizes};
      attended = {carver.array<T>(batch * length * width), {batch, length, width}};
      lse = {carver.array<float>(batch * num_heads * length), {batch, num_heads, length}};
      return carver.used();
    };
    lease_ = borrow_scratch(context, std::max<std::size_t>(carve(nullptr), 1));  // views of no rows have a pointer too
    carve(lease_.data());
  }

 private:
  ScratchLease lease_;
};

}  // namespace qkv::inline v0::nn
