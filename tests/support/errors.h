// A call's error: its type and the parts of its text.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

namespace qkv::test {

/// The text of the E that `call` throws; fails when it throws nothing or something else.
template <class E, class F> std::string text_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// Each of `parts` stands in the text.
inline void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

/// The call throws an E whose text is one line and has every part.
template <class E, class F> void expect_error(F&& call, std::initializer_list<std::string_view> parts) {
  const std::string text = text_of<E>(call);
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  expect_parts(text, parts);
}

}  // namespace qkv::test
