// AttentionLM's configuration: its checks, and its entries in a file's metadata. Not: the model (model.cc).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "lm/metadata.h"
#include "lm/model.h"

namespace qkv::inline v0::lm {
namespace {

constexpr const char* kPrefix = "lm.";
constexpr const char* kFromMetadata = "AttentionLMConfig::from_metadata";

/// `fallback`, where given, is the meaning of files older than the entry.
Index read_index(const std::map<std::string, std::string>& metadata, const std::string& name,
                 std::optional<Index> fallback = {}) {
  if (fallback && !metadata.contains(kPrefix + name)) return *fallback;
  const auto entry = metadata.find(kPrefix + name);
  check<OptionError>(entry != metadata.end(), kFromMetadata, "the file must have the metadata entry ", kPrefix, name,
                     ": got none");
  Index value = 0;
  check<OptionError>(parsed(entry->second, value) && value >= 0, kFromMetadata, kPrefix, name,
                     " must be a whole number, not negative: got \"", entry->second.substr(0, 40), "\"");
  return value;
}

bool read_flag(const std::map<std::string, std::string>& metadata, const std::string& name,
               std::optional<Index> fallback = {}) {
  const Index value = read_index(metadata, name, fallback);
  check<OptionError>(value <= 1, kFromMetadata, kPrefix, name, " must be 0 or 1: got ", value);
  return value == 1;
}

double read_number(const std::map<std::string, std::string>& metadata, const std::string& name, double fallback) {
  const auto entry = metadata.find(kPrefix + name);
  if (entry == metadata.end()) return fallback;
  double value = 0;
  check<OptionError>(parsed(entry->second, value), kFromMetadata, kPrefix, name, " must be a number: got \"",
                     entry->second.substr(0, 40), "\"");
  return value;
}

/// The shortest text that reads back as the same bits.
std::string exact_text(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// The options of rotary positions by their names in a file.
constexpr std::pair<const char*, double RotaryOptions::*> kRotaryNumbers[] = {
    {"rotary_base", &RotaryOptions::base},
    {"rotary_factor", &RotaryOptions::factor},
    {"rotary_beta_fast", &RotaryOptions::beta_fast},
    {"rotary_beta_slow", &RotaryOptions::beta_slow},
    {"rotary_low_frequency", &RotaryOptions::low_frequency},
    {"rotary_high_frequency", &RotaryOptions::high_frequency}};
constexpr const char* kAttentionFactor = "rotary_attention_factor";

void save_rotary(const RotaryOptions& rotary, std::map<std::string, std::string>& metadata) {
  const auto set = [&](const char* name, std::string text) { metadata[std::string(kPrefix) + name] = std::move(text); };
  set("rotary_dim", std::to_string(rotary.rotary_dim));
  set("rotary_layout", std::to_string(static_cast<int>(rotary.layout)));
  set("rotary_scaling", std::to_string(static_cast<int>(rotary.scaling)));
  set("rotary_original_context", std::to_string(rotary.original_context));
  for (const auto& [name, member] : kRotaryNumbers) set(name, exact_text(rotary.*member));
  if (rotary.attention_factor) set(kAttentionFactor, exact_text(*rotary.attention_factor));
}

/// A file older than an entry means its default.
RotaryOptions read_rotary(const std::map<std::string, std::string>& metadata) {
  const auto choice = [&](const char* name, auto last) {
    const Index value = read_index(metadata, name, 0);
    check<OptionError>(value <= static_cast<Index>(last), kFromMetadata, kPrefix, name, " must be at most ",
                       static_cast<Index>(last), ": got ", value);
    return static_cast<decltype(last)>(value);
  };
  RotaryOptions rotary;
  rotary.rotary_dim = read_index(metadata, "rotary_dim", 0);
  rotary.layout = choice("rotary_layout", RotaryLayout::kInterleaved);
  rotary.scaling = choice("rotary_scaling", RotaryScaling::kLlama3);
  rotary.original_context = read_index(metadata, "rotary_original_context", 0);
  for (const auto& [name, member] : kRotaryNumbers) rotary.*member = read_number(metadata, name, rotary.*member);
  if (metadata.contains(std::string(kPrefix) + kAttentionFactor)) {
    rotary.attention_factor = read_number(metadata, kAttentionFactor, 1);
  }
  return rotary;
}

// Dropout is stored in units of 2^-16, the generator's resolution.
constexpr double kDropoutUnit = 65536;

}  // namespace

void AttentionLMConfig::save_metadata(std::map<std::string, std::string>& metadata) const {
  const auto set = [&](const char* name, Index value) { metadata[std::string(kPrefix) + name] = std::to_string(value); };
  set("vocab_size", vocab_size);
  set("context", context);
  set("embed_dim", embed_dim);
  set("num_heads", num_heads);
  set("num_kv_heads", num_kv_heads == 0 ? num_heads : num_kv_heads);
  set("num_layers", num_layers);
  set("rotary", positions == PositionKind::kRotary ? 1 : 0);
  if (positions == PositionKind::kRotary) save_rotary(rotary, metadata);
  set("blocks", blocks ? 1 : 0);
  set("causal", causal ? 1 : 0);
  set("dropout_65536ths", static_cast<Index>(std::lround(dropout * kDropoutUnit)));
}

AttentionLMConfig AttentionLMConfig::from_metadata(const std::map<std::string, std::string>& metadata) {
  AttentionLMConfig config;
  config.vocab_size = read_index(metadata, "vocab_size");
  config.context = read_index(metadata, "context");
  config.embed_dim = read_index(metadata, "embed_dim");
  config.num_heads = read_index(metadata, "num_heads");
  config.num_kv_heads = read_index(metadata, "num_kv_heads", config.num_heads);
  config.num_layers = read_index(metadata, "num_layers");
  config.positions = read_flag(metadata, "rotary", 0) ? PositionKind::kRotary : PositionKind::kLearned;
  if (config.positions == PositionKind::kRotary) config.rotary = read_rotary(metadata);
  config.blocks = read_flag(metadata, "blocks");
  config.causal = read_flag(metadata, "causal");
  config.dropout = static_cast<double>(read_index(metadata, "dropout_65536ths")) / kDropoutUnit;
  return checked(config);
}

const AttentionLMConfig& checked(const AttentionLMConfig& c) {
  constexpr const char* kFunction = "AttentionLM";
  check<OptionError>(c.vocab_size >= 1 && c.context >= 1 && c.embed_dim >= 1 && c.num_heads >= 1 && c.num_layers >= 1,
                     kFunction, "vocab_size, context, embed_dim, num_heads and num_layers must be at least 1: got ",
                     c.vocab_size, ", ", c.context, ", ", c.embed_dim, ", ", c.num_heads, ", ", c.num_layers);
  // 2^20 keeps products of two sizes far from overflow; a file's metadata may hold anything.
  constexpr Index kLargest = Index{1} << 20;
  check<OptionError>(std::max({c.vocab_size, c.context, c.embed_dim, c.num_layers}) <= kLargest, kFunction,
                     "vocab_size, context, embed_dim and num_layers must be at most ", kLargest, ": got ", c.vocab_size, ", ",
                     c.context, ", ", c.embed_dim, ", ", c.num_layers);
  check<OptionError>(c.embed_dim % c.num_heads == 0, kFunction, "num_heads must divide embed_dim: got ", c.num_heads,
                     " heads for embed_dim ", c.embed_dim);
  check<OptionError>(c.num_kv_heads >= 0 && (c.num_kv_heads == 0 || c.num_heads % c.num_kv_heads == 0), kFunction,
                     "num_kv_heads must divide num_heads (0: as many): got ", c.num_kv_heads, " for ", c.num_heads, " heads");
  check<OptionError>(c.positions == PositionKind::kLearned || c.rotary.rotary_dim != 0 || c.embed_dim / c.num_heads % 2 == 0,
                     kFunction, "rotary positions need an even head width embed_dim / num_heads: got ",
                     c.embed_dim / c.num_heads);
  if (c.positions == PositionKind::kRotary) Rotary(c.embed_dim / c.num_heads, c.rotary);
  check<OptionError>(c.dropout >= 0 && c.dropout <= 1, kFunction, "dropout must be in [0, 1]: got ", c.dropout);
  return c;
}

}  // namespace qkv::inline v0::lm
