// One product of bf16 matrices on one thread, summed in f32: C = A B (+ bias), or C += A B. oneDNN primitives, made once per
// shape and held. Not: threads (linear_products.h), f32 (the own kernel is faster). The only file that includes oneDNN is
// matmul.cc.
#pragma once

#include <memory>

#include "qkv/types.h"

namespace qkv {
inline namespace v0 {
namespace nn {

/// What a primitive is made for. Strides in elements; of each pair one must be 1.
struct MatmulShape {
  Index rows = 0;                               // M
  Index columns = 0;                            // N
  Index inner = 0;                              // K
  Index a_row_stride = 0, a_column_stride = 1;  // A [M, K]
  Index b_row_stride = 0, b_column_stride = 1;  // B [K, N]
  Index c_row_stride = 0;                       // C [M, N], column stride 1
  bool bias = false;                            // + bias [N], f32, in every row
  bool accumulate = false;                      // C is f32 and added to; else C is bf16. Not together with bias

  bool operator==(const MatmulShape&) const = default;
};

class Matmul {
 public:
  explicit Matmul(const MatmulShape& shape);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Runs on the calling thread alone. Any number of threads may run one Matmul at once; bias is null without bias.
  void run(const BFloat16* a, const BFloat16* b, const float* bias, void* c) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether oneDNN has this CPU's own bf16 products; it also imitates them, at a sixth of the rate of widened f32 products.
bool has_native_bf16_matmul();

/// The held primitive for a shape, made at the first request. Thread-safe. At most kHeldMatmuls are held: a program with ever
/// new shapes stays within bounds and pays for making them again.
inline constexpr int kHeldMatmuls = 1024;
std::shared_ptr<const Matmul> held_matmul(const MatmulShape& shape);

}  // namespace nn
}  // namespace v0
}  // namespace qkv
