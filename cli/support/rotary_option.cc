#include "support/rotary_option.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "core/escape.h"
#include "support/command.h"

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

RotaryScaling scaling_of(const std::string& value) {
  static const std::map<std::string, RotaryScaling> kNames = {{"none", RotaryScaling::kNone},
                                                              {"linear", RotaryScaling::kLinear},
                                                              {"ntk", RotaryScaling::kNtk},
                                                              {"yarn", RotaryScaling::kYarn},
                                                              {"llama3", RotaryScaling::kLlama3}};
  const auto found = kNames.find(value);
  if (found == kNames.end()) {
    throw UsageError("--rope scaling must be one of none, linear, ntk, yarn, llama3: got " + escaped(value));
  }
  return found->second;
}

void take(RotaryChoice& choice, const std::string& key, const std::string& value) {
  RotaryOptions& o = choice.options;
  if (key == "base") {
    o.base = number_of(key, value);
  } else if (key == "dim") {
    o.rotary_dim = index_of(key, value);
  } else if (key == "layout") {
    o.layout = layout_of(value);
  } else if (key == "offset") {
    choice.positions.offset = index_of(key, value);
  } else if (key == "scaling") {
    o.scaling = scaling_of(value);
  } else if (key == "factor") {
    o.factor = number_of(key, value);
  } else if (key == "context") {
    o.original_context = index_of(key, value);
  } else if (key == "beta-fast") {
    o.beta_fast = number_of(key, value);
  } else if (key == "beta-slow") {
    o.beta_slow = number_of(key, value);
  } else if (key == "attention-factor") {
    o.attention_factor = number_of(key, value);
  } else if (key == "low") {
    o.low_frequency = number_of(key, value);
  } else if (key == "high") {
    o.high_frequency = number_of(key, value);
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
    if (equals == std::string::npos) throw UsageError("--rope takes KEY=VALUE with commas between: got " + escaped(part));
    take(choice, part.substr(0, equals), part.substr(equals + 1));
    at = end + 1;
  }
  return choice;
}

}  // namespace qkv::cli
