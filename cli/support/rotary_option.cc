#include "support/rotary_option.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/escape.h"
#include "support/command.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

constexpr std::string_view kKeys =
    "base, dim, layout, offset, scaling, factor, context, beta-fast, beta-slow, attention-factor, low, high";

double number_of(const std::string& key, const std::string& value) {
  double number = 0;
  const char* const end = value.data() + value.size();
  const auto [next, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || next != end) throw UsageError("--rope " + key + " must be a number: got " + escaped(value));
  return number;
}

Index index_of(const std::string& key, const std::string& value) {
  const double number = number_of(key, value);
  if (number != std::floor(number) || std::abs(number) > 0x1p53) {
    throw UsageError("--rope " + key + " must be a whole number: got " + escaped(value));
  }
  return static_cast<Index>(number);
}

RotaryLayout layout_of(const std::string& value) {
  if (value == "half") return RotaryLayout::kHalfSplit;
  if (value == "interleaved") return RotaryLayout::kInterleaved;
  throw UsageError("--rope layout must be half or interleaved: got " + escaped(value));
}

constexpr std::pair<std::string_view, double RotaryOptions::*> kNumbers[] = {
    {"base", &RotaryOptions::base},           {"factor", &RotaryOptions::factor},     {"beta-fast", &RotaryOptions::beta_fast},
    {"beta-slow", &RotaryOptions::beta_slow}, {"low", &RotaryOptions::low_frequency}, {"high", &RotaryOptions::high_frequency}};

void take(RotaryChoice& choice, const std::string& key, const std::string& value) {
  RotaryOptions& o = choice.options;
  const auto* const number = std::ranges::find(kNumbers, key, [](const auto& one) { return one.first; });
  if (number != std::end(kNumbers)) {
    o.*number->second = number_of(key, value);
  } else if (key == "dim") {
    o.rotary_dim = index_of(key, value);
  } else if (key == "layout") {
    o.layout = layout_of(value);
  } else if (key == "offset") {
    choice.positions.offset = index_of(key, value);
  } else if (key == "scaling") {
    o.scaling = named<RotaryScaling>("--rope scaling", value,
                                     {{"none", RotaryScaling::kNone},
                                      {"linear", RotaryScaling::kLinear},
                                      {"ntk", RotaryScaling::kNtk},
                                      {"yarn", RotaryScaling::kYarn},
                                      {"llama3", RotaryScaling::kLlama3}});
  } else if (key == "context") {
    o.original_context = index_of(key, value);
  } else if (key == "attention-factor") {
    o.attention_factor = number_of(key, value);
  } else {
    throw UsageError("--rope knows " + std::string(kKeys) + ": got " + escaped(key));
  }
}

}  // namespace

RotaryChoice parse_rotary(const std::string& text) {
  RotaryChoice choice;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) throw UsageError("--rope takes KEY=VALUE pairs separated by commas: got " + escaped(part));
    take(choice, part.substr(0, equals), part.substr(equals + 1));
    at = end + 1;
  }
  return choice;
}

}  // namespace qkv::cli
