// The JSON header of a safetensors file, read strictly.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/source.h"

namespace qkv::inline v0::io {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Bounds the work of a hostile header, since StateDict searches names linearly; the largest shards have a few thousand
/// tensors.
inline constexpr std::size_t kMaxTensors = 65'536;

/// One tensor as the header describes it. `begin` and `end` count from the start of the data, the offsets `_at` from
/// the start of the file.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<Index> sizes;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t name_at = 0;
  std::uint64_t shape_at = 0;
  std::uint64_t offsets_at = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;  ///< in the order of the file
  std::map<std::string, std::string> metadata;
};

/// `text` is the header, which begins at byte `start` of `source`. Checks the JSON alone; errors go through `source`.
Header parse_header(const std::string& text, std::uint64_t start, const Source& source);

}  // namespace qkv::inline v0::io
