#include "dispatch/kernels.h"

#include "core/check.h"

// src/CMakeLists.txt defines QKV_FOR_EACH_ISA(X), X(name) for the instruction sets of this build that have every table,
// and QKV_FOR_EACH_BF16_ISA(X) for those that have products of bf16 pairs alone, beside AVX-512's tables.
#define QKV_DECLARE(name)                                                     \
  extern const qkv::KernelTable qkv_kernels_##name;                           \
  extern const qkv::CacheTable qkv_cache_kernels_##name;                      \
  extern const qkv::CaptureKernelTable qkv_capture_kernels_##name;            \
  extern const qkv::LinearAttentionTable qkv_linear_attention_kernels_##name; \
  extern const qkv::SecondOrderTable qkv_second_order_kernels_##name;

extern "C" {
QKV_FOR_EACH_ISA(QKV_DECLARE)
QKV_FOR_EACH_BF16_ISA(QKV_DECLARE)
#if defined(QKV_FUSED_SCALAR)
QKV_DECLARE(fused)
#endif
}

namespace qkv::inline v0 {
namespace isa_of {

[[maybe_unused]] constexpr Isa scalar = Isa::kScalar, avx2 = Isa::kAvx2, avx512 = Isa::kAvx512,
                               avx512bf16 = Isa::kAvx512Bf16, amx = Isa::kAmx, neon = Isa::kNeon, sve256 = Isa::kSve256,
                               sve512 = Isa::kSve512;

}  // namespace isa_of

namespace {

/// Tables with products of bf16 pairs instead of their own.
struct Bf16Tables {
  KernelTable attention;
  CaptureKernelTable capture;
  KernelTables all;

  Bf16Tables(const KernelTables& own, const KernelTable& products, const CaptureKernelTable& capture_products)
      : attention(with_bf16_products(own.attention, products)),
        capture(own.capture),
        all{attention, own.cache, capture, own.linear_attention, own.second_order} {
    capture.f32.forward_pairs = capture_products.f32.forward_pairs;
  }
};

}  // namespace

const KernelTables& kernel_tables(Isa isa, bool invariant) {
  if (invariant && has_bf16_products(isa)) isa = Isa::kAvx512;
#if defined(QKV_FUSED_SCALAR)
  if (invariant && isa == Isa::kScalar) {  // rows of a cache are read and written without products
    static constexpr KernelTables tables{qkv_kernels_fused, qkv_cache_kernels_scalar, qkv_capture_kernels_fused,
        qkv_linear_attention_kernels_fused, qkv_second_order_kernels_fused};
    return tables;
  }
#endif
#define QKV_CASE(name)                                                                                             \
  case isa_of::name: {                                                                                             \
    static constexpr KernelTables tables{qkv_kernels_##name, qkv_cache_kernels_##name, qkv_capture_kernels_##name, \
        qkv_linear_attention_kernels_##name, qkv_second_order_kernels_##name};                                     \
    return tables;                                                                                                 \
  }
#define QKV_BF16_CASE(name)                                                                                      \
  case isa_of::name: {                                                                                           \
    static const Bf16Tables tables(kernel_tables(Isa::kAvx512), qkv_kernels_##name, qkv_capture_kernels_##name); \
    return tables.all;                                                                                           \
  }
  switch (isa) {
    QKV_FOR_EACH_ISA(QKV_CASE)
    QKV_FOR_EACH_BF16_ISA(QKV_BF16_CASE)
    default: fail<OptionError>("kernel_tables", "this program was built without the kernels of ", isa_name(isa));
  }
#undef QKV_BF16_CASE
#undef QKV_CASE
}

}  // namespace qkv::inline v0
