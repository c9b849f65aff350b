// safetensors: named tensors and string metadata <-> bytes. Every rule of the format is checked, and no length is trusted
// before it is checked, so that a hostile file costs an exception and no more. Not: sharded checkpoints (an index of several
// files), lazy reading, the 8-bit and smaller floats, complex numbers. Format: github.com/huggingface/safetensors, README.md
// and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "qkv/export.h"
#include "qkv/state_dict.h"

namespace qkv {
inline namespace v0 {
namespace io {

/// Entries come in the order of the header. Throws FormatError (with the byte offset) when a rule is broken or a dtype is not
/// read, IoError when the file cannot be read. Limits: a header of 100,000,000 bytes (the format's), 65,536 tensors, 64 axes
/// (ours).
QKV_API StateDict load_safetensors(const std::filesystem::path& path);
QKV_API StateDict parse_safetensors(std::span<const std::byte> bytes);

/// The header lists the tensors in the order of `state`; data lies by falling element size, so that each tensor is aligned.
/// Throws OptionError for a name or metadata text that the format cannot hold, ShapeError when bytes and sizes of a tensor
/// disagree.
QKV_API std::vector<std::byte> write_safetensors(const StateDict& state);
/// Written whole or not at all (file.h).
QKV_API void save_safetensors(const std::filesystem::path& path, const StateDict& state);

}  // namespace io
}  // namespace v0
}  // namespace qkv
