// Rows of a larger problem (Placement) that begin or end inside a strip: which keys a strip takes its first shift from depends
// on the masks of all its lanes, so such rows are computed with their strip's other lanes, as rows of zeros.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "attention/plan/choose.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// The options with the place of these rows.
AttentionOptions placed(const AttentionOptions& options, const Placement& place);
template <class T>
AttentionOptions options_of(const AttentionOptions& options, const Problem<T>& p, const StripRows& rows) {
  return placed(options, {p.first_query - rows.before, p.queries, p.first_head, p.heads});
}

/// Rows [B, H, T] of any type, in bytes.
struct RowBytes {
  std::byte* data = nullptr;
  std::array<Index, 3> sizes{}, strides{};
  Index width = 0;
};
template <class E, int kRank>
RowBytes row_bytes(const View<E, kRank>& x) {
  constexpr Index size = sizeof(E);
  const auto at = reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<E>*>(x.data()));
  return {at,
          {x.size(0), x.size(1), x.size(2)},
          {x.stride(0) * size, x.stride(1) * size, x.stride(2) * size},
          kRank == 3 ? size : x.size(kRank - 1) * size};
}

/// A copy of rows among those of whole strips, zeros or `fill` (of `size` bytes) in the rows that are added. One code for all
/// types, because few calls need it. A null view gives null views.
class StripCopy {
 public:
  StripCopy(const RowBytes& rows, const StripRows& strips, const void* fill = nullptr, std::size_t size = 1);
  /// The call's rows, into `rows`; nothing where that is null.
  void copy_to(const RowBytes& rows) const;
  /// As E, in the sizes of `like` but for the rows.
  template <class E, int kRank>
  View<std::remove_const_t<E>, kRank> view(const View<E, kRank>& like) {
    using Number = std::remove_const_t<E>;
    if (memory_.data() == nullptr) return {};
    auto sizes = like.sizes();
    sizes[2] = memory_.size(2);
    return {reinterpret_cast<Number*>(memory_.data()), sizes};
  }

 private:
  Tensor<std::byte> memory_;
  RowBytes own_;  // the call's rows in it
};

}  // namespace qkv::inline v0
