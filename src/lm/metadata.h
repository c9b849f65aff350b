// Numbers in the metadata of a model's file. Not: which entries exist (config.cc, checkpoint.cc).
#pragma once

#include <charconv>
#include <string>

namespace qkv::inline v0::lm {

/// True when the whole text is one number; `value` is then that number.
template <class Number>
bool parsed(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace qkv::inline v0::lm
