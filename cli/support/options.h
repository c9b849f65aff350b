// Options that several commands share, and values inside them. Not: what a command does with them.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/escape.h"
#include "qkv/attention.h"

namespace qkv::cli {

/// --threads N, --isa NAME.
struct ComputeOptions {
  int threads = 0;  ///< 0: all that the process may use
  std::string isa;  ///< empty: the fastest

  ContextOptions context() const;
};
/// `threads` is the default that --help shows; 0 means all.
void add_compute_options(CLI::App& app, ComputeOptions& options, int threads = 0);

/// The integer type of an option's variable, which may be optional.
template <class Value>
struct IntegerOf {
  using Type = Value;
};
template <class Integer>
struct IntegerOf<std::optional<Integer>> {
  using Type = Integer;
};

/// "an integer from 1 to 1024", "an integer of at least 0": the largest of the type is named only to whom it stops.
template <class Integer>
std::string integer_text(Integer least, Integer most, bool too_large) {
  const std::string from = std::to_string(least);
  const bool named = too_large || most != std::numeric_limits<Integer>::max();
  return named ? "an integer from " + from + " to " + std::to_string(most) : "an integer of at least " + from;
}

/// --option N with N in decimal digits and within [least, most]; anything else is a ValidationError that says so. CLI11's own
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

/// --json
void add_json_option(CLI::App& app, bool& json);

/// "4,2" -> {4, 2}. UsageError that names the option.
std::vector<Index> parse_indices(std::string_view option, const std::string& text);

/// "zero", "mean", "nan"; UsageError that lists them.
EmptyRow parse_empty_row(const std::string& text);
/// "square", "top-left", "bottom-right".
Align parse_align(std::string_view option, const std::string& text);
/// "bk", "qk", "bqk", "hqk".
MaskAxes parse_mask_axes(const std::string& text);

/// A keep or drop mask from a tensor, which the mask borrows: four axes, or fewer with their names (empty: none were given).
Mask dense_mask(std::string_view option, const Tensor<std::uint8_t>& dense, const std::string& axes, bool keep);

}  // namespace qkv::cli
