// --json: one document on standard output, and no other text there. Keys keep the order in which they were given.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "judge/array.h"
#include "qkv/tensor.h"
#include "support/text.h"

namespace qkv::cli {

using Json = nlohmann::ordered_json;

/// Prints the document with an end of line. Invalid UTF-8 is replaced; numbers that JSON lacks (NaN) become null.
inline void print_json(const Json& document) {
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

/// [[...], ...]: value(n) of each element, row-major.
template <class Value> Json nested(const std::vector<Index>& sizes, const Value& value) {
  Index next = 0;
  const auto list_of = [&](const auto& self, std::size_t axis) -> Json {
    if (axis == sizes.size()) return value(next++);
    Json list = Json::array();
    for (Index n = 0; n < sizes[axis]; ++n) list.push_back(self(self, axis + 1));
    return list;
  };
  return list_of(list_of, 0);
}
template <class T> Json nested(const Tensor<T>& tensor) {
  return nested(tensor.sizes(), [&](Index n) { return tensor.data()[n]; });
}
/// Whole numbers as integers.
inline Json nested(const judge::Array& x) {
  return nested(x.shape, [&](Index n) {
    const double value = x[n].value;
    return value == std::floor(value) ? Json(static_cast<Index>(value)) : Json(value);
  });
}

}  // namespace qkv::cli
