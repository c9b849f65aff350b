// AttentionLM: the toy language model. Token embeddings, positions (learned or rotary), attention with as many key/value heads
// as wanted, a linear head; forward, loss, backward.
//
//   h = tok[id] + pos[i];   h = W_o(attention(W_q h, W_k h, W_v h));   logits = head(h)                  plain (article 003)
//   h = wte[id] + wpe[i];   per layer: h += attn(ln_1(h)), h += mlp(ln_2(h));   logits = lm_head(ln_f(h))  blocks (nanoGPT)
//   rotary positions: no pos[i], q and k of every layer turned by i instead (qkv/rotary.h)
//
// Not: training (trainer.h), sampling (generate.h), a general network. f32. Radford 2019 (GPT-2); Karpathy's nanoGPT for names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/nn/module.h"
#include "qkv/rotary.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv {
inline namespace v0 {
namespace lm {

/// How a token's place is known.
enum class PositionKind {
  kLearned,  ///< a row of an embedding for each position, added to the token's (GPT-2)
  kRotary    ///< q and k turned by the position, in every layer (Llama)
};

struct QKV_API AttentionLMConfig {
  Index vocab_size = 0;
  Index context = 16;    ///< no input is longer; as many positions are learned
  Index embed_dim = 32;  ///< E; num_heads divides it
  Index num_heads = 1;
  Index num_kv_heads = 0;  ///< heads of keys and values, shared by num_heads / num_kv_heads query heads each; 0: num_heads
  Index num_layers = 1;
  bool blocks = false;  ///< residual + LayerNorm + MLP (4 E, GELU), normalised first
  bool causal = true;
  PositionKind positions = PositionKind::kLearned;
  RotaryOptions rotary = {};  ///< of kRotary; as it stands the whole head, of even width E / num_heads, turns
  double dropout = 0;  ///< on weights, and on what attention (and the MLP) adds; active in training only

  /// Strings for a file's metadata, and back. from_metadata throws OptionError that names the entry.
  void save_metadata(std::map<std::string, std::string>& metadata) const;
  static AttentionLMConfig from_metadata(const std::map<std::string, std::string>& metadata);
};

/// What one layer computed for a batch, seen per head. Contiguous.
struct LayerTrace {
  Tensor<float> q;        ///< [B, H, T, D]; q and k as attention reads them: turned where positions are rotary
  Tensor<float> k, v;     ///< [B, Hkv, T, D]
  Tensor<float> weights;  ///< [B, H, T, T]
};

/// Parameters, state_dict() and load_state_dict() as every nn::Module. Names: tok.weight pos.weight attn.W_q.weight
/// attn.W_k.weight attn.W_v.weight attn.W_o.weight head.weight head.bias (several plain layers: attn.0.W_q.weight ..);
/// nanoGPT's with blocks. Without pos.weight (transformer.wpe.weight) where positions are rotary.
class QKV_API AttentionLM : public nn::Module {
 public:
  /// Parameters drawn as PyTorch draws them (other bits): Embedding N(0, 1), Linear U(+-1/sqrt(fan_in)), LayerNorm 1 and 0.
  /// Throws OptionError, with the numbers, for sizes that cannot be.
  explicit AttentionLM(const AttentionLMConfig& config, std::uint64_t seed = 0);
  ~AttentionLM() override;
  AttentionLM(AttentionLM&&) noexcept;
  AttentionLM& operator=(AttentionLM&&) noexcept;
  /// The same configuration and parameters; gradients 0.
  AttentionLM clone() const;

  const AttentionLMConfig& config() const;
  /// Lets a trained model look at the future, or no longer: for experiments.
  void set_causal(bool causal);
  /// Training mode turns dropout on. A new model is in evaluation mode.
  void train(bool on = true);

  std::vector<nn::Parameter> parameters() override;
  /// As nn::Module. With blocks a file may lack lm_head.weight, which GPT-2 ties to transformer.wte.weight: a copy of that
  /// then.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

  /// What forward keeps for backward, and scratch; reused from step to step, so that no tensor is allocated twice.
  /// One per running computation.
  class QKV_API Activations {
   public:
    Activations();
    ~Activations();
    Activations(Activations&&) noexcept;
    Activations& operator=(Activations&&) noexcept;

    View<const float, 3> logits() const;  ///< [B, T, V] of the last forward

   private:
    friend class AttentionLM;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Logits [B, T, V] of ids [B, T], T <= context. Throws OptionError for an id outside the vocabulary, ShapeError for T.
  void forward(View<const Index, 2> ids, Activations& activations, std::uint64_t dropout_seed = 0,
               Context& context = Context::default_context()) const;
  Tensor<float> logits(View<const Index, 2> ids, Context& context = Context::default_context()) const;

  /// Mean cross-entropy of the last forward over the targets [B, T] that are not kNoTarget; keeps dlogits for backward.
  double loss(View<const Index, 2> targets, Activations& activations, Context& context = Context::default_context()) const;
  /// Overwrites every gradient with that of the last loss.
  void backward(Activations& activations, Context& context = Context::default_context());

  /// Per layer: q, k, v and the weights for ids [B, T], without dropout.
  std::vector<LayerTrace> trace(View<const Index, 2> ids, Context& context = Context::default_context()) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 protected:
  std::string_view type_name() const override;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lm
}  // namespace v0
}  // namespace qkv
