// The header of an .npy file: a Python dict literal of three known keys, parsed and never evaluated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/source.h"

namespace qkv::inline v0::io {

struct NpyHeader {
  DType dtype = DType::kF32;
  bool big_endian = false;
  bool fortran_order = false;
  std::vector<Index> sizes;
  std::uint64_t shape_at = 0;  ///< from the start of the file
};

/// `text` is the header, which begins at byte `start` of `source`; errors go through `source`.
NpyHeader parse_npy_header(const std::string& text, std::uint64_t start, const Source& source);

/// "<f4". Empty for a dtype that .npy cannot name.
std::string npy_descr(DType dtype);

}  // namespace qkv::inline v0::io
