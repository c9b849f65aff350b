// Parameters of the kernels of layers, as plain data: Linear, embedding, cross-entropy, activations. And their table.
#pragma once

#include <cstddef>

#include "qkv/types.h"

namespace qkv {

/// C [rows, columns] = A B (+ bias), or sums += A B, of a linear layer, in T = float or BFloat16, summed in float. Of
/// each operand's two strides one is 1.
template <class T> struct MatrixProduct {
  const T *a, *b;
  const float* wide_b = nullptr;  // BFloat16 only, instead of b: rounded as it is read
  const float* bias = nullptr;    // [columns] or null; not together with sums
  T* c = nullptr;                 // rounded once; null: sums are added to
  float* sums = nullptr;
  Index rows, columns, depth;
  Index a_row, a_depth;     // strides of A [rows, depth]
  Index b_row, b_column;    // strides of B [depth, columns]
  Index c_row;              // of c or sums
  float* a_sums = nullptr;  // [rows] or null: a_sums[i] += sum over depth of A[i, :]; needs a_row 1
  Index all_rows = 0;       // of the whole product, of which this may be a part
  bool invariant = false;   // float only: a row of C has the same bits for any number of rows
  bool into_l2 = false;     // then few rows of A prefetch B into L2 alone
};

/// rows[m, :] = table[ids[m], :] + other[other_ids[m], :], or += table[ids[m], :]
struct GatherRows {
  const float* table;
  Index table_stride;
  const Index* ids;  // [count]
  float* rows;
  Index row_stride, count, width;
  bool accumulate;
  const float* other;  // or null; not together with accumulate
  Index other_stride;
  const Index* other_ids;  // [count]
};

/// table[ids[m], :] += rows[m, :]
struct ScatterRows {
  const float* rows;
  Index row_stride;
  const Index* ids;  // [count]
  float* table;
  Index table_stride, count, width;
};

/// The loss of rows of logits [rows, columns] and its gradient times `share`.
struct CrossEntropyRows {
  const float* logits;
  Index logits_stride;
  const Index* targets;  // [rows]; negative: none
  float* gradient;
  Index gradient_stride, rows, columns;
  float share;
};

/// y = f(x), or dy f'(x), of an activation f; y may be x or dy.
struct ActivationRows {
  const float* x;
  Index x_stride;
  const float* dy;  // or null
  Index dy_stride;
  float* y;
  Index y_stride, rows, columns;
};

template <class T> struct ProductKernels {
  std::size_t (*scratch_bytes)(const MatrixProduct<T>&);
  void (*run)(const MatrixProduct<T>&, void* scratch);
};

struct LayerKernels {
  ProductKernels<float> product;
  ProductKernels<BFloat16> bf16_product;  // null functions without instructions for pairs
  void (*gather)(const GatherRows&);
  void (*scatter)(const ScatterRows&);
  double (*cross_entropy)(const CrossEntropyRows&);  // the sum over rows with a target
  void (*gelu)(const ActivationRows&);
  void (*silu)(const ActivationRows&);
};

}  // namespace qkv
