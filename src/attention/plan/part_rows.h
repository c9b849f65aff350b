// Rows of a larger problem (detail::Part) that begin or end inside a strip: which keys a strip takes its first shift
// from depends on the masks of all its lanes, so such rows are computed with their strip's other lanes, as zeros.
#pragma once

#include <cstring>

#include "attention/plan/choose.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {

/// A copy of rows [B, H, T, ..] among those of whole strips, or the rows themselves where none are added; those that
/// are added hold zeros, or infinity.
class StripCopy {
 public:
  enum class Fill { kZero, kInfinity };
  StripCopy(const AnyView& rows, const StripRows& strips, Fill fill = Fill::kZero) : rows_(rows), wide_(rows) {
    if (rows.data == nullptr || !strips.added) return;
    const Index width = rows.rank == 3 ? 1 : rows.size(3);
    memory_ = Tensor<std::byte>({rows.size(0), rows.size(1), strips.count, width * rows.element_bytes()});
    wide_.data = memory_.data();
    wide_.sizes[2] = strips.count;
    wide_.strides = {rows.size(1) * strips.count * width, strips.count * width, width, rows.rank == 3 ? 0 : 1};
    own_ = wide_;
    own_.data = wide_.at(0, 0, strips.before);
    own_.sizes = rows.sizes;
    if (fill == Fill::kInfinity) {
      with_sums(rows.type, [&]<class Sum>(Sum) {
        std::fill_n(reinterpret_cast<Sum*>(memory_.data()), memory_.count() / Index{sizeof(Sum)},
            std::numeric_limits<Sum>::infinity());
      });
    }
    copy(rows_, own_);
  }
  StripCopy(const StripCopy&) = delete;
  StripCopy& operator=(const StripCopy&) = delete;

  /// Instead of the rows.
  const AnyView& wide() const { return wide_; }
  /// The call's rows, back to where they were copied from.
  void copy_back() const {
    if (own_.data != nullptr) copy(own_, rows_);
  }

 private:
  static void copy(const AnyView& from, const AnyView& to) {
    const auto bytes = static_cast<std::size_t>((from.rank == 3 ? 1 : from.size(3)) * from.element_bytes());
    for (Index b = 0; b < from.size(0); ++b) {
      for (Index h = 0; h < from.size(1); ++h) {
        for (Index i = 0; i < from.size(2); ++i) std::memcpy(to.at(b, h, i), from.at(b, h, i), bytes);
      }
    }
  }

  AnyView rows_, wide_, own_;  // own: the call's rows in the copy
  Tensor<std::byte> memory_;
};

/// The problem of whole strips; q: its rows.
inline Problem widened(const Problem& p, const StripRows& strips, const AnyView& q) {
  Problem wide = p;
  wide.q = q;
  wide.part_mask = {&p.mask, {p.first_query, p.first_query + p.q_len}};
  wide.first_query -= strips.before;
  wide.q_len = strips.count;
  return wide;
}

}  // namespace qkv::inline v0
