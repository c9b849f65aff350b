// check<ErrorType>(condition, "function", parts...): the one way to state a requirement. The text is built only when it
// fails.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#include "qkv/error.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// The shortest decimal that reads back as the same number.
inline std::string number_text(double value) {
  char text[32];
#if defined(__cpp_lib_to_chars)
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
#else
  for (int digits = 1; std::snprintf(text, sizeof text, "%.*g", digits, value), digits < 17; ++digits) {
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
#endif
}

/// One part of a message: a text, a number, a view or tensor (its shape), or a function that gives a text.
template <class Part> std::string part_text(const Part& part) {
  if constexpr (std::is_convertible_v<Part, std::string_view>) {
    return std::string(std::string_view(part));
  } else if constexpr (std::floating_point<Part>) {
    return number_text(static_cast<double>(part));
  } else if constexpr (std::integral<Part>) {
    return std::to_string(part);
  } else if constexpr (requires { part.shape(); }) {
    return part.shape();
  } else {
    return part();
  }
}

/// Throws ErrorType("[function] " + the parts, concatenated). Out of line, so that the check itself stays one branch.
template <class ErrorType, class... Parts>
[[noreturn]] [[gnu::noinline]] [[gnu::cold]] void fail(std::string_view function, const Parts&... parts) {
  std::string text("[");
  text.append(function).append("] ");
  ((text += part_text(parts)), ...);
  throw ErrorType(text);
}

/// check<ShapeError>(q.size(3) == k.size(3), "attention_forward", "head_dim of k must be that of q: q ", q, ", k ", k);
/// The name of the function becomes a string_view only where the check fails: that of a pointer needs its length.
template <class ErrorType, class Name, class... Parts>
void check(bool condition, const Name& function, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail<ErrorType>(function, parts...);
}

}  // namespace qkv::inline v0
