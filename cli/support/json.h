// --json: one document on standard output, and no other text there. Keys keep the order in which they were given.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "judge/array.h"
#include "qkv/tensor.h"
#include "support/text.h"

namespace qkv::cli {

using Json = nlohmann::ordered_json;

/// Prints the document with an end of line. What is not UTF-8 is replaced; numbers that JSON lacks (NaN) become null.
inline void print_json(const Json& document) { print_line(document.dump(2, ' ', false, Json::error_handler_t::replace)); }

/// [[...], ...]: a view as nested arrays.
template <class T>
Json nested(const View<const T, 1>& view) {
  Json list = Json::array();
  for (Index i = 0; i < view.size(0); ++i) list.push_back(view(i));
  return list;
}
template <class T, int Rank>
  requires(Rank > 1)
Json nested(const View<const T, Rank>& view) {
  Json list = Json::array();
  typename View<const T, Rank - 1>::Sizes sizes{}, strides{};
  for (std::size_t axis = 1; axis < static_cast<std::size_t>(Rank); ++axis) {
    sizes[axis - 1] = view.sizes()[axis];
    strides[axis - 1] = view.strides()[axis];
  }
  for (Index i = 0; i < view.size(0); ++i) {
    list.push_back(nested(View<const T, Rank - 1>(view.data() + i * view.stride(0), sizes, strides)));
  }
  return list;
}

/// [[...], ...]: a tensor as nested arrays.
template <class T>
Json nested(const Tensor<T>& tensor) {
  const T* next = tensor.data();
  const auto list_of = [&](const auto& self, int axis) -> Json {
    if (axis == tensor.rank()) return *next++;
    Json list = Json::array();
    for (Index n = 0; n < tensor.size(axis); ++n) list.push_back(self(self, axis + 1));
    return list;
  };
  return list_of(list_of, 0);
}

/// The same; whole numbers as integers.
inline Json nested(const judge::Array& x) {
  Index next = 0;
  const auto list_of = [&](const auto& self, std::size_t axis) -> Json {
    if (axis == x.shape.size()) {
      const double value = x[next++].value;
      return value == std::floor(value) ? Json(static_cast<Index>(value)) : Json(value);
    }
    Json list = Json::array();
    for (Index n = 0; n < x.shape[axis]; ++n) list.push_back(self(self, axis + 1));
    return list;
  };
  return list_of(list_of, 0);
}

}  // namespace qkv::cli
