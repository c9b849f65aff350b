// Replaces matmul.cc where the library is built without oneDNN (QKV_ONEDNN=OFF): then no CPU has native bf16 products, and
// linear_products_bf16.cc widens to f32.
#include "nn/products/matmul.h"
#include "qkv/error.h"

namespace qkv::inline v0::nn {

struct Matmul::Impl {};

Matmul::Matmul(const MatmulShape&) {
  throw UnsupportedError("[Matmul] bf16 products need oneDNN: this library was built with QKV_ONEDNN=OFF");
}
Matmul::~Matmul() = default;

void Matmul::run(const BFloat16*, const BFloat16*, const float*, void*) const {}

bool has_native_bf16_matmul() { return false; }

std::shared_ptr<const Matmul> held_matmul(const MatmulShape& shape) { return std::make_shared<const Matmul>(shape); }

}  // namespace qkv::inline v0::nn
