// Columns of the rows of latent attention as heads, and the functions on rows that it uses. Not: arithmetic.
#pragma once

#include <utility>

#include "nn/products/linear_products.h"
#include "nn/rows/rms_norm.h"
#include "qkv/nn/module.h"

namespace qkv::inline v0::nn {

/// Columns [begin, begin + width) of each of `heads` heads of rows [B, T, E], as [B, heads, T, width].
template <class T>
View<T, 4> columns_of(T* data, const std::vector<Index>& sizes, Index heads, Index begin, Index width) {
  const Index row = sizes[2];
  return {data + begin, {sizes[0], heads, sizes[1], width}, {sizes[1] * row, row / heads, row, 1}};
}
template <class T>
View<T, 4> columns_of(Tensor<T>& rows, Index heads, Index begin, Index width) {
  return columns_of(rows.data(), rows.sizes(), heads, begin, width);
}
template <class T>
View<const T, 4> columns_of(const Tensor<T>& rows, Index heads, Index begin, Index width) {
  return columns_of(rows.data(), rows.sizes(), heads, begin, width);
}

/// The first `width` numbers of every row.
template <class T>
View<T, 2> first_columns(const View<T, 2>& rows, Index width) {
  return {rows.data(), {rows.size(0), width}, {rows.stride(0), 1}};
}

}  // namespace qkv::inline v0::nn
