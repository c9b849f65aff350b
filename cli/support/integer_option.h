// An option that takes one integer. Not: options in general (options.h), headings (option_group.h).
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "core/escape.h"

namespace qkv::cli {

/// The integer type of an option's variable, which may be optional.
template <class Value>
struct IntegerOf {
  using Type = Value;
};
template <class Integer>
struct IntegerOf<std::optional<Integer>> {
  using Type = Integer;
};

/// "an integer from 1 to 1024", "an integer of at least 0": the largest number of the type is named only in an error about it.
template <class Integer>
std::string integer_text(Integer least, Integer most, bool too_large) {
  const std::string from = std::to_string(least);
  const bool named = too_large || most != std::numeric_limits<Integer>::max();
  return named ? "an integer from " + from + " to " + std::to_string(most) : "an integer of at least " + from;
}

/// --option N with N in decimal digits and within [least, most]; any other text is a ValidationError that says so. CLI11's own
/// reading saturates, wraps negative numbers and takes 010 as octal.
template <class Value, class Integer = typename IntegerOf<Value>::Type>
CLI::Option* add_integer(CLI::App& app, const std::string& name, Value& value, const std::string& help,
                         std::type_identity_t<Integer> least = 0,
                         std::type_identity_t<Integer> most = std::numeric_limits<Integer>::max()) {
  const auto read = [name, &value, least, most](const CLI::results_t& words) {
    Integer number = 0;
    const std::string& text = words.back();
    const char* const end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || next != end || number < least || number > most) {
      const bool too_large = error == std::errc::result_out_of_range;
      throw CLI::ValidationError(name + " must be " + integer_text<Integer>(least, most, too_large) + ": got " + escaped(text));
    }
    value = number;
    return true;
  };
  return app.add_option(name, read, help)->type_name("N")->type_size(1)->expected(1);
}

}  // namespace qkv::cli
