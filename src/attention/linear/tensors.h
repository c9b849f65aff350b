// The tensors of a call as a table, and the one check of all of them: sizes, strides, overlap. And rows of tokens, as
// kernels read them.
#pragma once

#include <span>

#include "attention/call/tensor_checks.h"
#include "dispatch/kernels.h"

namespace qkv::inline v0 {

enum TensorKind : int { kAnyStrides = 0, kInRows = 1, kOptional = 2 };  // in rows: the last axis has stride 1

struct CallTensor {
  template <class... Sizes> CallTensor(const char* given, const AnyView& view, int kinds, Sizes... wanted)
      : name(given), x(view), kind(kinds), rank(sizeof...(wanted)), sizes{wanted...} {}

  const char* name;
  AnyView x;
  int kind, rank;
  std::array<Index, 4> sizes;
};

/// Throws ShapeError.
inline void check_tensors(
    const char* function, std::span<const CallTensor> outputs, std::span<const CallTensor> inputs) {
  for (const std::span<const CallTensor> list : {inputs, outputs}) {
    for (const CallTensor& o : list) {
      if ((o.kind & kOptional) != 0 && o.x.is_null()) continue;
      check<ShapeError>(
          o.x.rank == o.rank && o.x.sizes == o.sizes, function, o.name, " must be ",
          [&] { return shape_text(o.sizes.data(), o.rank); }, ": got ", o.x);
      if ((o.kind & kInRows) != 0) check_last_stride(function, o.name, o.x);
    }
  }
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    const NamedBox output(outputs[n].name, outputs[n].x);
    check_written(function, output);
    for (const CallTensor& other : inputs) check_apart(function, output, {other.name, other.x});
    for (const CallTensor& other : outputs.first(n)) check_apart(function, output, {other.name, other.x});
  }
}

/// Of sequence b of x [B, T, C], from one channel on.
template <class T> TokenRows<T> token_rows(const View<T, 3>& x, Index b, Index channel) {
  return {x.is_null() ? nullptr : x.data() + b * x.stride(0) + channel * x.stride(2), x.stride(1)};
}

}  // namespace qkv::inline v0
