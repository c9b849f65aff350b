// Gradients that all work items of a call share (dbias, dsinks and dposition_bias): their checks; zeros in a gradient.
#pragma once

#include <cstring>

#include "attention/call/problem.h"

namespace qkv::inline v0 {

/// Throws ShapeError unless each gradient that is given has the sizes of its tensor, OptionError for a score_mod that
/// has no slope.
inline void check_shared_gradients(const char* function, const Problem& p, const Gradients& g) {
  check<OptionError>(p.score_mod == nullptr || p.score_mod->has_slope(), function,
      "score_mod must have a slope, its derivative: got one without");
  check<ShapeError>(g.dbias.is_null() || g.dbias.sizes == p.bias.sizes, function,
      "dbias must have the sizes of the bias: got dbias ", g.dbias, ", bias ", p.bias);
  check<ShapeError>(g.dsinks.is_null() || g.dsinks.sizes == p.sinks.sizes, function,
      "dsinks must have the sizes of the sinks: got dsinks ", g.dsinks, ", sinks ", p.sinks);
  const std::array<Index, 4> table{p.position_bias->rows(), p.position_bias->heads()};
  check<ShapeError>(
      g.dposition_bias.is_null() || g.dposition_bias.sizes == table, function,
      "dposition_bias must be [rows, H], here ", [&] { return shape_text(table.data(), 2); }, ": got ",
      g.dposition_bias);
}

/// Zeros in rows [begin, begin + count) of (b, h); nothing of a null view.
inline void zero_rows(const AnyView& x, Index b, Index h, Index begin, Index count) {
  const auto bytes = static_cast<std::size_t>(x.size(3) * x.element_bytes());
  for (Index i = begin; i < begin + count && x.data != nullptr; ++i) std::memset(x.at(b, h, i), 0, bytes);
}

/// Zeros in the whole of a view of sums; nothing of a null one.
inline void zero_all(const AnyView& x) {
  if (x.data == nullptr) return;
  const auto size = [&](int axis) { return axis < x.rank ? x.size(axis) : 1; };
  with_sums(x.type, [&]<class Sum>(Sum) {
    for (Index a = 0; a < size(0); ++a) {
      for (Index b = 0; b < size(1); ++b) {
        for (Index c = 0; c < size(2); ++c) {
          for (Index d = 0; d < size(3); ++d) x.as<Sum>(a, b, c)[d * x.stride(3)] = Sum{};
        }
      }
    }
  });
}

}  // namespace qkv::inline v0
