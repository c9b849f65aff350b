// .npy: one array <-> bytes. Versions 1.0, 2.0 and 3.0 are read, 1.0 is written. The header is parsed, never evaluated.
// Not: .npz, object, structured, text, date and complex arrays, bfloat16 (NumPy has no name for it).
// Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "qkv/export.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0::io {

/// The result is row-major and little-endian whatever the file's order. Throws FormatError (with the byte offset) for a
/// broken header or a dtype that is not read, IoError when the file cannot be read. Limits: a header of 65,535 bytes,
/// 64 axes.
QKV_API AnyTensor load_npy(const std::filesystem::path& path);
QKV_API AnyTensor parse_npy(std::span<const std::byte> bytes);

/// Throws UnsupportedError for bf16, ShapeError when bytes and sizes disagree.
QKV_API std::vector<std::byte> write_npy(const AnyTensor& tensor);
/// Atomic (file.h).
QKV_API void save_npy(const std::filesystem::path& path, const AnyTensor& tensor);

}  // namespace qkv::inline v0::io
