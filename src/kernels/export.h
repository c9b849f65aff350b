// How an instruction set's object exports its table: under a name of its own, and nothing else, so that no inline
// helper can be shared between instruction sets at link time. Dispatch declares them (dispatch/kernels.cc).
#pragma once

#if !defined(QKV_ISA)
#error "compile with -DQKV_ISA=NAME, as src/CMakeLists.txt does"
#endif
#define QKV_JOIN_(a, b) a##_##b
#define QKV_JOIN(a, b) QKV_JOIN_(a, b)

/// QKV_EXPORT(CacheTable, qkv_cache_kernels) = {...}; defines qkv_cache_kernels_avx2 and so on.
#define QKV_EXPORT(type, name) extern "C" const qkv::type QKV_JOIN(name, QKV_ISA)

/// What a build of floats alone leaves out (QKV_FLOAT_ONLY: WebAssembly, src/CMakeLists.txt); nothing may call it.
#if defined(QKV_FLOAT_ONLY)
#define QKV_UNLESS_FLOAT_ONLY(...) \
  {}
#else
#define QKV_UNLESS_FLOAT_ONLY(...) __VA_ARGS__
#endif
