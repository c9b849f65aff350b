// A file that was compiled in (cmake/EmbedFiles.cmake).
#pragma once

#include <span>
#include <string_view>

namespace qkv::inline v0 {

struct EmbeddedFile {
  std::string_view name;  ///< from its folder: "numpy/sdpa.py"
  std::string_view text;
};

}  // namespace qkv::inline v0
