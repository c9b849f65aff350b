// Options that Python names by a word.
#pragma once

#include <string>
#include <utility>

#include "qkv/error.h"

namespace qkv::python {

/// The value that `name` stands for. OptionError with `what`, "[function] option", and all names if there is none.
template <class Value, std::size_t kCount>
Value choice(const std::string& what, const std::string& name, const std::pair<const char*, Value> (&choices)[kCount]) {
  std::string names;
  for (std::size_t n = 0; n < kCount; ++n) {
    if (name == choices[n].first) return choices[n].second;
    names += (n == 0 ? "\"" : n + 1 == kCount ? " or \"" : ", \"") + std::string(choices[n].first) + "\"";
  }
  throw OptionError(what + " must be " + names + ": got \"" + name + "\"");
}

}  // namespace qkv::python
