// Entries in the metadata of a model's file.
#pragma once

#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "core/check.h"

namespace qkv::inline v0::lm {

using Metadata = std::map<std::string, std::string>;

/// Throws OptionError in the name of `function` where it is missing, as all below.
inline const std::string& read_text(const Metadata& metadata, const char* function, const std::string& name) {
  const auto entry = metadata.find(name);
  check<OptionError>(entry != metadata.end(), function, "the file must have the metadata entry ", name,
      ": got none; is it a checkpoint of this model?");
  return entry->second;
}

/// True when the whole text is one number; `value` is then that number.
template <class Number> bool parsed(const std::string& text, Number& value) {
#if !defined(__cpp_lib_to_chars)
  if constexpr (std::is_floating_point_v<Number>) {
    char* end = nullptr;
    value = static_cast<Number>(std::strtod(text.c_str(), &end));
    return !text.empty() && end == text.data() + text.size();
  } else
#endif
  {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  }
}

/// A whole number, not negative. `fallback`, where given, is the meaning of files older than the entry.
inline Index read_index(
    const Metadata& metadata, const char* function, const std::string& name, std::optional<Index> fallback = {}) {
  if (fallback && !metadata.contains(name)) return *fallback;
  const std::string& text = read_text(metadata, function, name);
  Index value = 0;
  check<OptionError>(parsed(text, value) && value >= 0, function, name, " must be a whole number, not negative: got \"",
      text.substr(0, 40), "\"");
  return value;
}

}  // namespace qkv::inline v0::lm
