#include "dispatch/kernels.h"

// X(name in src/CMakeLists.txt, enumerator) for the instruction sets that have every table.
#if defined(__x86_64__)
#define QKV_FOR_EACH_ISA(X) X(scalar, kScalar) X(avx2, kAvx2) X(avx512, kAvx512)
#elif defined(__aarch64__) && defined(__linux__)
#define QKV_FOR_EACH_ISA(X) X(scalar, kScalar) X(neon, kNeon) X(sve256, kSve256) X(sve512, kSve512)
#elif defined(__aarch64__)
#define QKV_FOR_EACH_ISA(X) X(scalar, kScalar) X(neon, kNeon)
#else
#define QKV_FOR_EACH_ISA(X) X(scalar, kScalar)
#endif

#define QKV_DECLARE(name, isa)                                                \
  extern const qkv::KernelTable qkv_kernels_##name;                           \
  extern const qkv::CacheTable qkv_cache_kernels_##name;                      \
  extern const qkv::CaptureKernelTable qkv_capture_kernels_##name;            \
  extern const qkv::LinearAttentionTable qkv_linear_attention_kernels_##name; \
  extern const qkv::SecondOrderTable qkv_second_order_kernels_##name;

extern "C" {
QKV_FOR_EACH_ISA(QKV_DECLARE)
#if defined(__x86_64__)
// These two hold only products of bf16 pairs.
extern const qkv::KernelTable qkv_kernels_avx512bf16, qkv_kernels_amx;
extern const qkv::CaptureKernelTable qkv_capture_kernels_avx512bf16, qkv_capture_kernels_amx;
#endif
}

namespace qkv::inline v0 {

#if defined(__x86_64__)
namespace {

/// AVX-512's tables with products of bf16 pairs.
struct Bf16Tables {
  KernelTable attention;
  CaptureKernelTable capture;
  KernelTables all;

  Bf16Tables(const KernelTable& products, const CaptureKernelTable& capture_products)
      : attention(with_bf16_products(qkv_kernels_avx512, products)),
        capture(qkv_capture_kernels_avx512),
        all{attention, qkv_cache_kernels_avx512, capture, qkv_linear_attention_kernels_avx512,
            qkv_second_order_kernels_avx512} {
    capture.bf16.forward = capture_products.bf16.forward;
  }
};

}  // namespace
#endif

const KernelTables& kernel_tables(Isa isa) {
#define QKV_CASE(name, isa)                                                                                        \
  case Isa::isa: {                                                                                                 \
    static constexpr KernelTables tables{qkv_kernels_##name, qkv_cache_kernels_##name, qkv_capture_kernels_##name, \
                                         qkv_linear_attention_kernels_##name, qkv_second_order_kernels_##name};    \
    return tables;                                                                                                 \
  }
  switch (isa) {
    QKV_FOR_EACH_ISA(QKV_CASE)
#if defined(__x86_64__)
    case Isa::kAvx512Bf16: {
      static const Bf16Tables tables(qkv_kernels_avx512bf16, qkv_capture_kernels_avx512bf16);
      return tables.all;
    }
    case Isa::kAmx: {
      static const Bf16Tables tables(qkv_kernels_amx, qkv_capture_kernels_amx);
      return tables.all;
    }
#endif
    default:
      return kernel_tables(Isa::kScalar);  // a context never has one that this build does not hold
  }
#undef QKV_CASE
}

}  // namespace qkv::inline v0
