// Options that several commands share, and values inside them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/escape.h"
#include "qkv/attention.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/rotary.h"
#include "support/command.h"

namespace qkv::cli {

struct ComputeOptions {
  int threads = 0;   ///< 0: all that the process may use
  std::string isa;   ///< empty: the fastest
  std::string bits;  ///< empty: the default

  ContextOptions context() const;
};
/// The instruction sets of this build, whether or not this CPU runs them.
std::string isa_names();

/// The value that one of several names stands for; UsageError that lists them.
template <class Value> Value named(
    std::string_view option, const std::string& text, const std::vector<std::pair<std::string_view, Value>>& values) {
  std::string names;
  for (const auto& [name, value] : values) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError(std::string(option) + " must be one of " + names + ": got " + escaped(text));
}

/// An option that speaks only of `what`, which may not be here.
struct OnlyAbout {
  const char* option;
  bool given, allowed;
  const char* what;
};
/// UsageError for the first that is given and not allowed: "--hint is about a verdict: leave it out".
void check_only_about(std::initializer_list<OnlyAbout> options);

/// "4,2" -> {4, 2}. UsageError that names the option.
std::vector<Index> parse_indices(std::string_view option, const std::string& text);

/// "0:1,1:0" -> {{0, 1}, {1, 0}}, layers and heads of the model. UsageError that names the option.
lm::HeadSet parse_heads(std::string_view option, const std::string& text, const lm::AttentionLMConfig& model);

/// "zero", "mean", "nan"; UsageError that lists them.
EmptyRow parse_empty_row(const std::string& text);
/// "square", "top-left", "bottom-right".
Align parse_align(std::string_view option, const std::string& text);

/// --keep FILE, --drop FILE, --mask-axes AXES.
struct DenseMaskOptions {
  std::string keep, drop, axes;

  void add_to(Options& add);
  /// UsageError for axes of no mask.
  void check(bool any) const;
  void check() const { check(!keep.empty() || !drop.empty()); }
};
/// A keep or drop mask from a tensor, which the mask borrows: four axes, or fewer with their names (empty: none were
/// given).
Mask dense_mask(std::string_view option, const Tensor<std::uint8_t>& dense, const std::string& axes, bool keep);

struct RotaryChoice {
  RotaryOptions options;
  RotaryPositions positions;
};
/// --rope "base=500000,scaling=llama3,factor=8,context=8192". UsageError that names the key or lists them.
RotaryChoice parse_rotary(const std::string& text);

}  // namespace qkv::cli
