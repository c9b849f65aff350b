// One product of bf16 matrices on one thread, summed in f32: C = A B (+ bias), or C += A B. oneDNN primitives, created once per
// shape and cached. Not: threads (linear_products.h), f32 (our own kernel is faster). The only file that includes oneDNN is
// matmul.cc.
#pragma once

#include <memory>

#include "qkv/types.h"

namespace qkv::inline v0::nn {

/// The key of a primitive. Strides in elements; one of A's two strides must be 1, and one of B's.
struct MatmulShape {
  Index rows = 0;                               // M
  Index columns = 0;                            // N
  Index inner = 0;                              // K
  Index a_row_stride = 0, a_column_stride = 1;  // A [M, K]
  Index b_row_stride = 0, b_column_stride = 1;  // B [K, N]
  Index c_row_stride = 0;                       // C [M, N], column stride 1
  bool bias = false;                            // + bias [N], f32, in every row
  bool accumulate = false;                      // C is f32 and added to; otherwise C is bf16. Not together with bias

  bool operator==(const MatmulShape&) const = default;
};

class Matmul {
 public:
  explicit Matmul(const MatmulShape& shape);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Runs on the calling thread alone. Any number of threads may run one Matmul concurrently; bias is null without bias.
  void run(const BFloat16* a, const BFloat16* b, const float* bias, void* c) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether oneDNN has native bf16 products for this CPU; it also emulates them, at a sixth of the rate of widened f32 products.
bool has_native_bf16_matmul();

/// The cached primitive for a shape, created by the first request. Thread-safe. At most kHeldMatmuls are cached: a program with
/// ever new shapes uses bounded memory and creates primitives again.
inline constexpr int kHeldMatmuls = 1024;
std::shared_ptr<const Matmul> held_matmul(const MatmulShape& shape);

}  // namespace qkv::inline v0::nn
