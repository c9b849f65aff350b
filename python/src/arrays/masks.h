// A mask as Python holds it: the value, and the arrays that it borrows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arrays/array.h"
#include "qkv/mask.h"

namespace qkv::python {

struct MaskObject {
  Mask mask;
  std::vector<std::shared_ptr<const Array>> borrowed{};
};

/// "square", "top_left" or "bottom_right".
Align parse_align(const char* function, const std::string& name);

}  // namespace qkv::python
