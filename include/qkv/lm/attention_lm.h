// AttentionLM: the toy language model. Token embeddings, positions (learned or rotary), grouped-query attention, a
// linear head; forward, loss, backward.
//
//   plain (article 003)   h = tok[id] + pos[i];   h = W_o(attention(W_q h, W_k h, W_v h));   logits = head(h)
//   blocks (nanoGPT)      h = wte[id] + wpe[i];   per layer: h += attn(ln_1(h)), h += mlp(ln_2(h));
//                         logits = lm_head(ln_f(h))
//   rotary positions      no pos[i]; q and k of every layer are rotated by their position instead (qkv/rotary.h)
//
// Not: training (trainer.h), sampling (generate.h), a general network. f32. Radford 2019 (GPT-2); Karpathy's nanoGPT
// for names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/context.h"
#include "qkv/export.h"
#include "qkv/nn/module.h"
#include "qkv/nn/sequence_part.h"
#include "qkv/rotary.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0::lm {

/// How the model encodes a token's position.
enum class PositionKind {
  kLearned,  ///< one embedding row per position, added to the token's (GPT-2)
  kRotary    ///< q and k rotated by the position, in every layer (Llama)
};

struct QKV_API AttentionLMConfig {
  Index vocab_size = 0;
  Index context = 16;    ///< the longest input, and the number of learned positions
  Index embed_dim = 32;  ///< E; a multiple of num_heads
  Index num_heads = 1;
  Index num_kv_heads = 0;  ///< key/value heads, each shared by num_heads / num_kv_heads query heads; 0: num_heads
  Index num_layers = 1;
  bool blocks = false;  ///< residual + LayerNorm + MLP (4 E, GELU), pre-norm
  bool causal = true;
  PositionKind positions = PositionKind::kLearned;
  RotaryOptions rotary = {};  ///< for kRotary; by default the whole head, of even width E / num_heads, is rotated
  double dropout = 0;         ///< on the weights, and on the outputs of attention and MLP; in training mode only

  /// To and from strings in a file's metadata. from_metadata throws OptionError that names the entry.
  void save_metadata(std::map<std::string, std::string>& metadata) const;
  static AttentionLMConfig from_metadata(const std::map<std::string, std::string>& metadata);
};

/// The part of every batch that one of several ranks computes: some of its sequences, of each all tokens or those of
/// `part`. Logits have the bits that they have in the whole; losses and gradients add up over ranks to the whole's.
struct BatchShare {
  Index batch = 0, length = 0;              ///< B and T of the whole batch; 0: this is all of it
  Index first_sequence = 0, sequences = 0;  ///< this rank's
  nn::SequencePart* part = nullptr;         ///< its tokens of each sequence; none: all
};

/// A head of a layer, both counted from 0.
struct HeadIndex {
  Index layer = 0, head = 0;
  bool operator==(const HeadIndex&) const = default;
};
/// Heads to leave out: {{0, 1}} is head 1 of layer 0. What such a head writes into the output projection is zeros.
using HeadSet = std::vector<HeadIndex>;

/// How AttentionLM::trace computes; by default as forward does.
struct TraceOptions {
  HeadSet cut = {};
  std::optional<bool> causal = {};    ///< none: the model's own
  bool scale = true;                  ///< scores are divided by sqrt(D)
  bool positions = true;              ///< learned positions are added, or rotary ones turn q and k
  View<const Index, 2> targets = {};  ///< [B, T], kNoTarget where there is none: for the loss and its gradients
};

/// One layer: H heads, Hkv of keys and values.
struct LayerTrace {
  Tensor<float> q, k, v;    ///< [B, H, T, D], [B, Hkv, T, D] twice; q and k after rotary positions
  Tensor<float> scores;     ///< [B, H, T, T]: q_i.k_j times the scale, -inf where the mask hides
  Tensor<float> weights;    ///< [B, H, T, T], those of attention_weights
  Tensor<float> gradients;  ///< [B, H, T, T]: of the loss by the weights, 0 where the mask hides; with targets
  Tensor<float> writes;     ///< [B, H, T]: norm of what the head adds to the layer's output, through W_o
};

struct Trace {
  std::vector<LayerTrace> layers;
  Tensor<float> logits;  ///< [B, T, V]
  double loss = 0;       ///< with targets
};

/// Parameters, state_dict() and load_state_dict() as in every nn::Module. Names: tok.weight pos.weight attn.W_q.weight
/// attn.W_k.weight attn.W_v.weight attn.W_o.weight head.weight head.bias (several plain layers: attn.0.W_q.weight ...);
/// nanoGPT's with blocks. With rotary positions there is no pos.weight (transformer.wpe.weight).
class QKV_API AttentionLM : public nn::Module {
 public:
  /// Initialised as in PyTorch (not bit-identical): Embedding N(0, 1), Linear U(+-1/sqrt(fan_in)), LayerNorm 1 and 0.
  /// Throws OptionError, with the numbers, for invalid sizes.
  explicit AttentionLM(const AttentionLMConfig& config, std::uint64_t seed = 0);
  ~AttentionLM() override;
  AttentionLM(AttentionLM&&) noexcept;
  AttentionLM& operator=(AttentionLM&&) noexcept;
  /// The same configuration and parameters; gradients 0. UnsupportedError for a shard.
  AttentionLM clone() const;

  const AttentionLMConfig& config() const;
  /// Turns the causal mask of a trained model on or off: for experiments.
  void set_causal(bool causal);
  /// Tensor parallelism (qkv/nn/sharding.h): the model with part `part` of the heads of every layer, and everything
  /// else whole. `sum` makes its numbers the sums over all parts: called once a layer in forward and once in backward.
  /// parts must divide the key/value heads: OptionError. Only forward, loss and backward are meaningful.
  AttentionLM shard(Index part, Index parts, std::function<void(std::span<float>)> sum) const;
  /// Takes back the parameters of part `part`: its heads, and from part 0 everything else. ShapeError, with
  /// nothing changed, for a shard of a model of other sizes.
  void merge_shard(const AttentionLM& shard, Index part, Index parts);
  /// Training mode turns dropout on. A new model is in evaluation mode.
  void train(bool on = true);

  std::vector<nn::Parameter> parameters() override;
  /// As in nn::Module. With blocks a file may lack lm_head.weight, which GPT-2 ties to transformer.wte.weight; then
  /// that tensor is copied.
  void load_state_dict(const StateDict& state, std::string_view prefix = {}) override;

  /// Values kept for backward, and scratch; reused from step to step, so that no tensor is allocated twice.
  /// One per concurrent computation.
  class QKV_API Activations {
   public:
    /// Throws OptionError for sequences that are not in the batch.
    explicit Activations(const BatchShare& share = {});
    ~Activations();
    Activations(Activations&&) noexcept;
    Activations& operator=(Activations&&) noexcept;

    View<const float, 3> logits() const;  ///< [B, T, V] of the last forward

   private:
    friend class AttentionLM;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Logits [B, T, V] of ids [B, T], T <= context, without the heads of `cut`; a shard leaves out those that it has.
  /// Throws OptionError for an id outside the vocabulary and for a head that is not there, ShapeError for T.
  void forward(View<const Index, 2> ids, Activations& activations, std::uint64_t dropout_seed = 0,
      Context& context = Context::default_context(), const HeadSet& cut = {}) const;
  Tensor<float> logits(
      View<const Index, 2> ids, Context& context = Context::default_context(), const HeadSet& cut = {}) const;

  /// Mean cross-entropy of the last forward over the targets [B, T] that are not kNoTarget; keeps dlogits for backward.
  /// `all`: the number of targets of the whole batch, where this is a share of it; 0: those here.
  double loss(View<const Index, 2> targets, Activations& activations, Context& context = Context::default_context(),
      Index all = 0) const;
  /// Overwrites every gradient with that of the last loss.
  void backward(Activations& activations, Context& context = Context::default_context());

  /// Per layer: the weights [B, H, T, T] for ids [B, T], without dropout.
  std::vector<Tensor<float>> attention_weights(
      View<const Index, 2> ids, Context& context = Context::default_context(), const HeadSet& cut = {}) const;
  /// All that heads compute for ids [B, T], without dropout.
  Trace trace(
      View<const Index, 2> ids, const TraceOptions& options = {}, Context& context = Context::default_context()) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  void run(View<const Index, 2> ids, Activations& activations, std::uint64_t dropout_seed, Context& context,
      const TraceOptions& as) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0::lm
