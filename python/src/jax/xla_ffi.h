// The part of XLA's foreign function interface that jax.cc uses: the C structures of xla/ffi/api/c_api.h, version 0.3,
// declared afresh, so that building a wheel needs no JAX. XLA keeps them for at least a year after a change, and every
// structure says its size. tests: python/tests/test_jax.py compiles this file beside JAX's own header and compares
// every offset. Not: what runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qkv::python::xla {

struct Extension {
  std::size_t struct_size;
  int type;  // 1: metadata
  Extension* next;
};
constexpr int kMetadataExtension = 1;

struct Version {
  std::size_t struct_size;
  Extension* extension_start;
  int major_version;
  int minor_version;
};

struct Metadata {
  std::size_t struct_size;
  Version api_version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum ErrorCode : int { kInvalidArgument = 3, kNotFound = 5, kUnimplemented = 12, kInternal = 13 };

struct Error;  // XLA's own

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode code;
};

// The table of XLA's functions begins so; only the first is called.
struct Api {
  std::size_t struct_size;
  Extension* extension_start;
  Version api_version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs*);
};

enum DataType : int { kPred = 1, kS32 = 4, kS64 = 5, kU32 = 8, kU64 = 9, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16 };

struct Buffer {
  std::size_t struct_size;
  Extension* extension_start;
  DataType type;
  void* data;
  std::int64_t rank;
  std::int64_t* sizes;
};

// Operands and results alike; kinds[n] is 1 for a Buffer, which is all there is.
struct Buffers {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t count;
  int* kinds;
  void** values;
};

struct ByteSpan {
  const char* begin;
  std::size_t size;
};

struct Scalar {
  DataType type;
  void* value;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t count;
  int* kinds;  // 3: Scalar
  ByteSpan** names;
  void** values;
};
constexpr int kScalarAttribute = 3;

struct CallFrame {
  std::size_t struct_size;
  Extension* extension_start;
  const Api* api;
  void* execution_context;
  int stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

}  // namespace qkv::python::xla
