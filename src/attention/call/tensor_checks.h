// What every call checks of its tensors: sizes that fit together, last strides of 1.
#pragma once

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/overlap.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

template <class T>
void check_last_stride(const char* function, const char* name, const View<T, 4>& view) {
  check<ShapeError>(view.stride(3) == 1 || view.size(3) == 1 || view.count() == 0, function, "the last axis of ", name,
                    " must have stride 1: got stride ", view.stride(3), " for ", view);
}

/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]. `v_unused`: v is not read and may be null.
template <class T>
void check_qkv(const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
               bool v_unused) {
  for (const View<const T, 4>* view : {&q, &k, &v}) {
    check<ShapeError>(std::ranges::min(view->sizes()) >= 0, function, "sizes must not be negative: got q ", q, ", k ", k,
                      ", v ", v);
  }
  check_reach(function, {"q", q});
  check_reach(function, {"k", k});
  check_reach(function, {"v", v});
  check<ShapeError>(q.size(3) >= 1, function, "head_dim must be at least 1: got q ", q);
  check<ShapeError>(k.size(0) == q.size(0), function, "batch of k must equal batch of q: got q ", q, ", k ", k);
  check<ShapeError>(k.size(3) == q.size(3), function, "head_dim of k must equal head_dim of q: got q ", q, ", k ", k);
  check<ShapeError>(q.size(1) == 0 || (k.size(1) > 0 && q.size(1) % k.size(1) == 0), function,
                    "heads of k must divide heads of q: got q ", q, ", k ", k);
  check_last_stride(function, "q", q);
  check_last_stride(function, "k", k);
  if (v_unused) return;
  check<ShapeError>(v.size(3) >= 1, function, "v_head_dim must be at least 1: got v ", v);
  check<ShapeError>(v.size(0) == k.size(0) && v.size(1) == k.size(1) && v.size(2) == k.size(2), function,
                    "batch, heads and length of v must equal those of k: got k ", k, ", v ", v);
  check_last_stride(function, "v", v);
}

/// Throws ShapeError unless view is [batch, heads, length, width] with last stride 1.
template <class T>
void check_sizes(const char* function, const char* name, const View<T, 4>& view, Index batch, Index heads, Index length,
                 Index width) {
  const std::array<Index, 4> wanted{batch, heads, length, width};
  check<ShapeError>(
      view.sizes() == wanted, function, name, " must be ", [&] { return shape_text(wanted.data(), 4); }, ": got ", view);
  check_last_stride(function, name, view);
}

}  // namespace qkv::inline v0
