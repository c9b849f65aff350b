// Generation with a KV cache: greedy, temperature, top-k. Not: beams, batches.
//
// A full context does not slide: learned positions are absolute, and with rotary ones the deeper layers' cached keys
// were computed from tokens that are gone. Instead the last half is kept, moved to position 0 and prefilled again, and
// the new character follows. Decoding with the cache and a full forward over the same window agree.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/lm/attention_lm.h"

namespace qkv::inline v0::lm {

/// Reads characters one by one and holds the logits of the next. Borrows the model, which must be causal.
class QKV_API Decoder {
 public:
  /// Throws OptionError when the model is not causal or lacks a head of `cut`, which is left out throughout.
  explicit Decoder(const AttentionLM& model, Context& context = Context::default_context(), const HeadSet& cut = {});
  ~Decoder();
  Decoder(Decoder&&) noexcept;

  /// Starts over with a prompt of at least one id; of a prompt longer than the context only the last `context` ids are
  /// read.
  void prefill(std::span<const Index> ids);
  /// Reads one more id. In a full context: keeps the last context / 2 ids, prefills them, and reads it.
  void append(Index id);

  std::span<const float> logits() const;  ///< [V] after the last id
  std::span<const Index> window() const;  ///< the ids that the logits were computed from, at positions from 0

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GenerateOptions {
  Index tokens = 64;
  bool greedy = false;     ///< take the largest logit; among equals the lowest id
  double temperature = 1;  ///< > 0
  Index top_k = 0;         ///< 0: all; otherwise draw from the k largest logits
  Index allowed_ids = -1;  ///< only ids below this may be drawn (excludes a mask symbol); -1: all
  std::uint64_t seed = 0;
  HeadSet cut = {};  ///< heads to leave out
  /// log_prob: of the model, whatever the temperature and top_k.
  std::function<void(Index id, double log_prob)> on_token{};
};

/// log(softmax(logits)[id]), natural, computed in double: logits [V] of one position. With Bits::kInvariant those of a
/// Decoder have the bits of AttentionLM::forward's, and so has this. Throws OptionError for an id outside [0, V).
QKV_API double log_probability(std::span<const float> logits, Index id);
/// softmax(logits) [V], computed in double.
QKV_API std::vector<float> probabilities(std::span<const float> logits);

/// The ids that follow the prompt. Throws OptionError for an empty prompt, an unknown id, invalid options and logits
/// that are not finite.
QKV_API std::vector<Index> generate(const AttentionLM& model, std::span<const Index> prompt,
    const GenerateOptions& options = {}, Context& context = Context::default_context());

}  // namespace qkv::inline v0::lm
