// Options that several commands share, and values inside them. Not: what a command does with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/escape.h"
#include "qkv/attention.h"
#include "support/command.h"

namespace qkv::cli {

/// --threads N, --isa NAME, --bits NAME.
struct ComputeOptions {
  int threads = 0;   ///< 0: all that the process may use
  std::string isa;   ///< empty: the fastest
  std::string bits;  ///< empty: the default

  ContextOptions context() const;
};
/// `threads` is the default that --help shows; 0 means all.
void add_compute_options(CLI::App& app, ComputeOptions& options, int threads = 0);

/// --json
void add_json_option(CLI::App& app, bool& json);

/// The value that one of several names stands for; UsageError that lists them.
template <class Value>
Value named(std::string_view option, const std::string& text, const std::vector<std::pair<std::string_view, Value>>& values) {
  std::string names;
  for (const auto& [name, value] : values) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError(std::string(option) + " must be one of " + names + ": got " + escaped(text));
}

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
