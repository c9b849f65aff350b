// Gradients that all work items of a call share (dbias, dsinks and dposition_bias): their checks and initialisation.
#pragma once

#include <array>

#include "attention/call/problem.h"
#include "core/check.h"

namespace qkv::inline v0 {

/// Throws ShapeError unless each gradient that is given has the sizes of its tensor.
template <class T>
void check_shared_gradients(const char* function, const Problem<T>& p, const View<Accumulator<T>, 4>& dbias,
                            const View<Accumulator<T>, 1>& dsinks, const View<Accumulator<T>, 2>& dposition_bias) {
  check<ShapeError>(dbias.is_null() || dbias.sizes() == p.bias.sizes(), function,
                    "dbias must have the sizes of the bias: got dbias ", dbias, ", bias ", p.bias);
  check<ShapeError>(dsinks.is_null() || dsinks.sizes() == p.sinks.sizes(), function,
                    "dsinks must have the sizes of the sinks: got dsinks ", dsinks, ", sinks ", p.sinks);
  const std::array<Index, 2> table{p.position_bias->rows(), p.position_bias->heads()};
  check<ShapeError>(
      dposition_bias.is_null() || dposition_bias.sizes() == table, function, "dposition_bias must be [rows, H], here ",
      [&] { return shape_text(table.data(), 2); }, ": got ", dposition_bias);
}

template <class T>
void zero_all(const View<T, 1>& view) {
  for (Index a = 0; a < view.size(0); ++a) view(a) = T{};
}
template <class T>
void zero_all(const View<T, 2>& view) {
  for (Index a = 0; a < view.size(0); ++a) {
    for (Index b = 0; b < view.size(1); ++b) view(a, b) = T{};
  }
}
template <class T>
void zero_all(const View<T, 4>& view) {
  for (Index a = 0; a < view.size(0); ++a) {
    for (Index b = 0; b < view.size(1); ++b) {
      for (Index c = 0; c < view.size(2); ++c) {
        for (Index d = 0; d < view.size(3); ++d) view(a, b, c, d) = T{};
      }
    }
  }
}

}  // namespace qkv::inline v0
