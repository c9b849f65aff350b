// Shared by the tests of the toy model: small and trained models, errors by their text, parameters bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nn/nn_support.h"
#include "qkv/lm/attention_lm.h"
#include "qkv/lm/data.h"
#include "qkv/lm/tokenizer.h"
#include "qkv/lm/trainer.h"
#include "support/errors.h"

namespace qkv::test {

inline const lm::CharTokenizer& default_tokenizer() {
  static const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(lm::default_text());
  return tokenizer;
}

inline constexpr lm::BatchShape kDefaultShape{};

inline std::vector<Index> default_ids() { return default_tokenizer().encode(lm::default_text()); }

inline lm::AttentionLMConfig default_config() { return {.vocab_size = default_tokenizer().vocab_size()}; }

/// Two heads, two layers, every option on: the largest of the small models.
inline lm::AttentionLMConfig blocks_config() {
  return {.vocab_size = 7, .context = 8, .embed_dim = 16, .num_heads = 2, .num_layers = 2, .blocks = true};
}

/// Four query heads that share two key/value heads, rotary positions, two layers.
inline lm::AttentionLMConfig grouped_rotary_config(bool blocks) {
  return {.vocab_size = 7,
      .context = 9,
      .embed_dim = 24,
      .num_heads = 4,
      .num_kv_heads = 2,
      .num_layers = 2,
      .blocks = blocks,
      .positions = lm::PositionKind::kRotary};
}

inline std::vector<float> all_of(lm::AttentionLM& model, std::span<float> nn::Parameter::*numbers) {
  std::vector<float> all;
  for (const nn::Parameter& p : model.parameters()) all.insert(all.end(), (p.*numbers).begin(), (p.*numbers).end());
  return all;
}
inline std::vector<float> values_of(lm::AttentionLM& model) { return all_of(model, &nn::Parameter::value); }
inline std::vector<float> gradients_of(lm::AttentionLM& model) { return all_of(model, &nn::Parameter::gradient); }

}  // namespace qkv::test
