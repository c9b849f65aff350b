// Rows of a larger problem (Placement) that begin or end inside a strip: which keys a strip takes its first shift from depends on
// the masks of all its lanes, so such rows are computed with their strip's other lanes, as rows of zeros. Not: rows that are whole
// strips, which are computed where they lie (Problem::whole_rows).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "attention/plan/decode.h"
#include "attention/plan/listed.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// The rows of whole strips that hold those of a call, counted in the whole problem.
struct StripRows {
  Index before, count;  // rows added before the call's first; rows with what is added
  bool added;           // any
};

/// Rows are added up to multiples of `step` of the whole problem.
template <class T>
StripRows strip_rows(const Problem<T>& p, Index step) {
  if (p.q_len == 0) return {0, 0, false};
  const Index begin = p.first_query / step * step;
  const Index end = std::min((p.first_query + p.q_len + step - 1) / step * step, p.queries);
  return {p.first_query - begin, end - begin, end - begin != p.q_len};
}

/// Forward; decode takes all rows of a problem at once. By lists of keys a row's bits are those that it has alone, but weights
/// beside out are computed by strips.
template <class T>
StripRows rows_of_forward(const Problem<T>& p, bool wants_out, bool wants_weights) {
  const bool listed = wants_out && p.placed() && Listed<T>(p).applies();
  if (listed && !wants_weights) return strip_rows(p, 1);
  return strip_rows(p, wants_out && !listed && decode_suits(p) ? p.queries : p.kernels->strip);
}
/// Backward; by lists too, because the maxima of a strip are computed again for an lse that was rounded. With a negative scale a
/// row of dq without keys is +0 or -0, by whether its tile meets any. (With a scale of 0 all of dq is zero, of either sign.)
template <class T>
StripRows rows_of_backward(const Problem<T>& p) {
  return strip_rows(p, p.scale >= 0 ? p.kernels->strip : p.query_tile);
}

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
  void take_back(const RowBytes& rows) const;
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
