// AttentionLM's configuration: its checks, and its entries in a file's metadata.
#include <algorithm>
#include <cmath>
#include <utility>

#include "lm/metadata.h"
#include "lm/model.h"

namespace qkv::inline v0::lm {
namespace {

constexpr const char* kFromMetadata = "AttentionLMConfig::from_metadata";

bool read_flag(const Metadata& metadata, const std::string& name, std::optional<Index> fallback = {}) {
  const Index value = read_index(metadata, kFromMetadata, name, fallback);
  check<OptionError>(value <= 1, kFromMetadata, name, " must be 0 or 1: got ", value);
  return value == 1;
}

double read_number(const Metadata& metadata, const std::string& name, double fallback) {
  const auto entry = metadata.find(name);
  if (entry == metadata.end()) return fallback;
  double value = 0;
  check<OptionError>(parsed(entry->second, value), kFromMetadata, name, " must be a number: got \"",
      entry->second.substr(0, 40), "\"");
  return value;
}

// Entries by their names in a file.
constexpr std::pair<const char*, Index AttentionLMConfig::*> kSizes[] = {
    {"lm.vocab_size", &AttentionLMConfig::vocab_size}, {"lm.context", &AttentionLMConfig::context},
    {"lm.embed_dim", &AttentionLMConfig::embed_dim}, {"lm.num_heads", &AttentionLMConfig::num_heads},
    {"lm.num_layers", &AttentionLMConfig::num_layers}};
constexpr std::pair<const char*, bool AttentionLMConfig::*> kFlags[] = {
    {"lm.blocks", &AttentionLMConfig::blocks}, {"lm.causal", &AttentionLMConfig::causal}};
constexpr std::pair<const char*, Index RotaryOptions::*> kRotarySizes[] = {
    {"lm.rotary_dim", &RotaryOptions::rotary_dim}, {"lm.rotary_original_context", &RotaryOptions::original_context}};
constexpr std::pair<const char*, double RotaryOptions::*> kRotaryNumbers[] = {{"lm.rotary_base", &RotaryOptions::base},
    {"lm.rotary_factor", &RotaryOptions::factor}, {"lm.rotary_beta_fast", &RotaryOptions::beta_fast},
    {"lm.rotary_beta_slow", &RotaryOptions::beta_slow}, {"lm.rotary_low_frequency", &RotaryOptions::low_frequency},
    {"lm.rotary_high_frequency", &RotaryOptions::high_frequency}};
constexpr const char *kKvHeads = "lm.num_kv_heads", *kRotary = "lm.rotary", *kLayout = "lm.rotary_layout",
                     *kScaling = "lm.rotary_scaling", *kAttentionFactor = "lm.rotary_attention_factor",
                     *kDropout = "lm.dropout_65536ths";
constexpr double kDropoutUnit = 65536;  // the generator's resolution

void save_rotary(const RotaryOptions& rotary, Metadata& metadata) {
  for (const auto& [name, member] : kRotarySizes) metadata[name] = std::to_string(rotary.*member);
  for (const auto& [name, member] : kRotaryNumbers) metadata[name] = number_text(rotary.*member);
  metadata[kLayout] = std::to_string(static_cast<int>(rotary.layout));
  metadata[kScaling] = std::to_string(static_cast<int>(rotary.scaling));
  if (rotary.attention_factor) metadata[kAttentionFactor] = number_text(*rotary.attention_factor);
}

/// A file older than an entry means its default.
RotaryOptions read_rotary(const Metadata& metadata) {
  const auto choice = [&](const char* name, auto last) {
    const Index value = read_index(metadata, kFromMetadata, name, 0);
    check<OptionError>(value <= static_cast<Index>(last), kFromMetadata, name, " must be at most ",
        static_cast<Index>(last), ": got ", value);
    return static_cast<decltype(last)>(value);
  };
  RotaryOptions rotary;
  for (const auto& [name, member] : kRotarySizes) rotary.*member = read_index(metadata, kFromMetadata, name, 0);
  for (const auto& [name, member] : kRotaryNumbers) rotary.*member = read_number(metadata, name, rotary.*member);
  rotary.layout = choice(kLayout, RotaryLayout::kInterleaved);
  rotary.scaling = choice(kScaling, RotaryScaling::kLlama3);
  if (metadata.contains(kAttentionFactor)) rotary.attention_factor = read_number(metadata, kAttentionFactor, 1);
  return rotary;
}

}  // namespace

void AttentionLMConfig::save_metadata(Metadata& metadata) const {
  for (const auto& [name, member] : kSizes) metadata[name] = std::to_string(this->*member);
  for (const auto& [name, member] : kFlags) metadata[name] = this->*member ? "1" : "0";
  metadata[kKvHeads] = std::to_string(num_kv_heads == 0 ? num_heads : num_kv_heads);
  metadata[kRotary] = positions == PositionKind::kRotary ? "1" : "0";
  if (positions == PositionKind::kRotary) save_rotary(rotary, metadata);
  metadata[kDropout] = std::to_string(std::lround(dropout * kDropoutUnit));
}

AttentionLMConfig AttentionLMConfig::from_metadata(const Metadata& metadata) {
  AttentionLMConfig config;
  for (const auto& [name, member] : kSizes) config.*member = read_index(metadata, kFromMetadata, name);
  for (const auto& [name, member] : kFlags) config.*member = read_flag(metadata, name);
  config.num_kv_heads = read_index(metadata, kFromMetadata, kKvHeads, config.num_heads);
  config.positions = read_flag(metadata, kRotary, 0) ? PositionKind::kRotary : PositionKind::kLearned;
  if (config.positions == PositionKind::kRotary) config.rotary = read_rotary(metadata);
  config.dropout = static_cast<double>(read_index(metadata, kFromMetadata, kDropout)) / kDropoutUnit;
  return checked(config);
}

const AttentionLMConfig& checked(const AttentionLMConfig& c) {
  constexpr const char* kFunction = "AttentionLM";
  check<OptionError>(c.vocab_size >= 1 && c.context >= 1 && c.embed_dim >= 1 && c.num_heads >= 1 && c.num_layers >= 1,
      kFunction, "vocab_size, context, embed_dim, num_heads and num_layers must be at least 1: got ", c.vocab_size,
      ", ", c.context, ", ", c.embed_dim, ", ", c.num_heads, ", ", c.num_layers);
  // 2^20 keeps products of two sizes far from overflow; a file's metadata may hold anything.
  constexpr Index kLargest = Index{1} << 20;
  check<OptionError>(std::max({c.vocab_size, c.context, c.embed_dim, c.num_layers}) <= kLargest, kFunction,
      "vocab_size, context, embed_dim and num_layers must be at most ", kLargest, ": got ", c.vocab_size, ", ",
      c.context, ", ", c.embed_dim, ", ", c.num_layers);
  check<OptionError>(c.embed_dim % c.num_heads == 0, kFunction, "num_heads must divide embed_dim: got ", c.num_heads,
      " heads for embed_dim ", c.embed_dim);
  check<OptionError>(c.num_kv_heads >= 0 && (c.num_kv_heads == 0 || c.num_heads % c.num_kv_heads == 0), kFunction,
      "num_kv_heads must divide num_heads (0: as many): got ", c.num_kv_heads, " for ", c.num_heads, " heads");
  check<OptionError>(
      c.positions == PositionKind::kLearned || c.rotary.rotary_dim != 0 || c.embed_dim / c.num_heads % 2 == 0,
      kFunction, "rotary positions need an even head width embed_dim / num_heads: got ", c.embed_dim / c.num_heads);
  if (c.positions == PositionKind::kRotary) Rotary(c.embed_dim / c.num_heads, c.rotary);
  check<OptionError>(c.dropout >= 0 && c.dropout <= 1, kFunction, "dropout must be in [0, 1]: got ", c.dropout);
  return c;
}

}  // namespace qkv::inline v0::lm
