// safetensors: named tensors and string metadata <-> bytes. Every rule of the format is checked, and every length before it is
// used: a hostile file causes an exception, nothing worse. Not: sharded checkpoints (an index of several files), lazy reading,
// the 8-bit and smaller floats, complex numbers. Format: github.com/huggingface/safetensors, README.md and
// safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "qkv/export.h"
#include "qkv/state_dict.h"

namespace qkv::inline v0::io {

/// Entries keep the order of the header. Throws FormatError (with the byte offset) for a broken rule or a dtype that is not
/// read, IoError when the file cannot be read. Limits: a header of 100,000,000 bytes (the format's), 65,536 tensors and 64 axes
/// (ours).
QKV_API StateDict load_safetensors(const std::filesystem::path& path);
QKV_API StateDict parse_safetensors(std::span<const std::byte> bytes);

/// The header lists the tensors in the order of `state`; the data is sorted by element size, largest first, so that each
/// tensor is aligned. Throws OptionError for a name or metadata text that the format cannot hold, ShapeError when a tensor's
/// bytes and sizes disagree.
QKV_API std::vector<std::byte> write_safetensors(const StateDict& state);
/// Atomic (file.h).
QKV_API void save_safetensors(const std::filesystem::path& path, const StateDict& state);

}  // namespace qkv::inline v0::io
