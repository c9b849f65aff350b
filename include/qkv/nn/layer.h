// Layer: the interface of every form of attention in the ladder: [B, T, E] -> [B, T, output_dim], forward and backward,
// with parameters. Also: layers by their names on the command line. Not: the forms themselves (self_attention.h,
// average.h).
//
// Thread safety: forward is const and may run concurrently (each call its own Saved); backward, load and train may not.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "qkv/attention.h"
#include "qkv/nn/module.h"
#include "qkv/nn/sequence_part.h"
#include "qkv/rotary.h"

namespace qkv::inline v0::nn {

struct ForwardOptions {
  Mask mask = {};                   ///< intersected with the layer's causal mask; what it borrows must outlive backward
  std::optional<bool> causal = {};  ///< none: the layer's own
  std::optional<EmptyRow> empty_row = {};  ///< none: the layer's own
  std::uint64_t seed = 0;            ///< of this call's dropouts, on weights and output; used in training mode only
  Index first_sequence = 0;          ///< number of sequence 0 in the dropouts' counters
  Tensor<float>* weights = nullptr;  ///< filled when not null: [B, H, T, T] after softmax, before dropout
  Tensor<float>* applied = nullptr;  ///< filled when not null: [B, H, T, T] after dropout
  /// of layers with rotary positions and without part, or OptionError; what it borrows must outlive backward
  RotaryPositions positions = {};
  /// the tokens are a part of their sequences, which has their positions; must outlive backward
  SequencePart* part = nullptr;
  std::optional<double> scale = {};  ///< of scores; none: 1/sqrt(D)
  std::span<const Index> cut = {};   ///< heads that write zeros, in a shard too by their numbers in the whole layer
  Context* context = nullptr;        ///< none: the default one
};

/// Values for backward, filled by forward, owned by the caller; reused from step to step it does not allocate.
/// The tensors may be read (a cache, a picture); dy and those after it are workspace.
/// T: float, or BFloat16 in a layer that computes on bf16.
template <class T> struct SavedOf {
  Tensor<T> x;                 // [B, T, E]
  Tensor<T> projected;         // [B, T, W + 2 Wkv]: q, k, v side by side as attention reads them, W = heads * head_dim
  Tensor<T> raw;               // [B, T, W + Wkv]: q and k before their norms, where they have any
  Tensor<T> attended;          // [B, T, W], before the output projection
  Tensor<float> lse, lse_low;  // [B, H, T]; lse_low not with a part
  AttentionOptions options;    // of the layer's attention
  RotaryPositions positions;
  SequencePart* part = nullptr;
  std::vector<Index> cut;          // heads that wrote zeros
  Dropout residual;                // of the output
  Tensor<T> dy;                    // [B, T, output_dim] after dropout's backward
  Tensor<T> dattended;             // [B, T, W]
  Tensor<T> dprojected;            // [B, T, W + 2 Wkv]
  Tensor<float> dq_norm, dk_norm;  // partial sums of the norms' gradients
};
using Saved = SavedOf<float>;
using Bf16Saved = SavedOf<BFloat16>;

/// The span over which q and k are normalised before attention: x / sqrt(mean(x^2) + eps) * weight.
enum class QkNorm {
  kNone,
  kHead,   ///< each head by itself, weights [D]: Qwen 3
  kVector  ///< all heads together, weights [H * D] and [Hkv * D]: OLMo 2
};

/// How Linear parameters are initialised.
enum class Init {
  kLinear,   ///< torch.nn.Linear: weights and biases uniform +-1/sqrt(fan_in)
  kTorchMha  ///< torch.nn.MultiheadAttention: q, k, v Xavier-uniform as one [3E, E], output +-1/sqrt(fan_in), biases 0
};

class QKV_API Layer : public Module {
 public:
  /// "v3": the name in `qkv layer`.
  virtual std::string_view name() const = 0;
  virtual Index embed_dim() const = 0;   ///< 0: any
  virtual Index output_dim() const = 0;  ///< 0: the input's
  virtual Index num_heads() const;
  virtual bool masks_have_heads() const;

  /// y [B, T, output_dim] from x [B, T, E]. Saved is filled for backward when it is given.
  Tensor<float> forward(View<const float, 3> x, const ForwardOptions& options = {}, Saved* saved = nullptr) const;
  /// dx [B, T, E] from dy [B, T, output_dim]; parameter gradients += .
  Tensor<float> backward(View<const float, 3> dy, Saved& saved, Context& context = Context::default_context());

  /// The same into the caller's memory (last stride 1), which is overwritten. A null dx is not computed.
  virtual void forward_into(
      View<const float, 3> x, View<float, 3> y, const ForwardOptions& options, Saved* saved) const = 0;
  virtual void backward_into(
      View<const float, 3> dy, Saved& saved, View<float, 3> dx, Context& context = Context::default_context()) = 0;

  /// The same on bf16: what is between projections and attention is bf16 too, sums are float and rounded once.
  /// Parameters stay float and are rounded as products read them, so weights that hold bf16 numbers are read exactly;
  /// gradients of parameters are float. UnsupportedError from a layer without projections.
  Tensor<BFloat16> forward(
      View<const BFloat16, 3> x, const ForwardOptions& options = {}, Bf16Saved* saved = nullptr) const;
  Tensor<BFloat16> backward(
      View<const BFloat16, 3> dy, Bf16Saved& saved, Context& context = Context::default_context());
  virtual void forward_into(
      View<const BFloat16, 3> x, View<BFloat16, 3> y, const ForwardOptions& options, Bf16Saved* saved) const;
  virtual void backward_into(View<const BFloat16, 3> dy, Bf16Saved& saved, View<BFloat16, 3> dx,
      Context& context = Context::default_context());

  /// Training mode turns dropout on. A new layer is in evaluation mode.
  void train(bool on = true) { training_ = on; }
  void eval() { training_ = false; }
  bool training() const { return training_; }

  /// A mask from a dense tensor without naming its axes: [B, Tk], [B, 1, Tq, Tk], and [B, Tq, Tk] without heads or
  /// [B|1, H|1, Tq|1, Tk|1] with them. Any other rank is a ShapeError, and so is a square [T, T], which may be [B, Tk]
  /// of as many sequences as tokens or [Tq, Tk]: Mask::keep(dense, MaskAxes::kQk) says which. Borrows the tensor.
  Mask keep(const Tensor<std::uint8_t>& dense) const;
  Mask drop(const Tensor<std::uint8_t>& dense) const;

 protected:
  explicit Layer(std::string_view type) : Module(type) {}

 private:
  bool training_ = false;
};

/// Options of make_layer. Each layer reads those that concern it and no others: not num_kv_heads of "mha", output_proj
/// of all but "v2", causal of "average" and "fixed-weights". `none` is the layer's own default.
struct LayerConfig {
  Index embed_dim = 0;
  Index num_heads = 0;                         ///< mha, grouped-query: required
  Index num_kv_heads = 0;                      ///< grouped-query; 0: num_heads
  Index head_dim = 0;                          ///< grouped-query; 0: embed_dim / num_heads
  Index d_k = 0;                               ///< self-attention; 0: embed_dim
  Index length = 0;                            ///< fixed-weights: T
  std::optional<bool> bias = {};               ///< none: single-head and grouped-query false, others true
  std::optional<bool> output_bias = {};        ///< grouped-query; none: as bias
  QkNorm qk_norm = QkNorm::kNone;              ///< grouped-query
  double norm_eps = 1e-6;                      ///< grouped-query
  std::optional<RotaryOptions> rotary = {};    ///< grouped-query; none: no rotary positions
  std::optional<float> dropout = {};           ///< on weights; none: the layer's default
  std::optional<float> residual_dropout = {};  ///< on the output; none: the layer's default
  std::optional<bool> causal = {};             ///< none: single-head true, others false
  std::optional<EmptyRow> empty_row = {};      ///< none: kMean; single-head kNaN; grouped-query kZero
  std::optional<bool> output_proj = {};        ///< v2; none: without
  Init init = Init::kLinear;
  std::uint64_t seed = 0;
};

/// The ladder from the bottom up: "average", "fixed-weights", "v1", "v2", "v3", "v4", "self-attention", "single-head",
/// "mha"; then "grouped-query".
QKV_API std::span<const std::string_view> layer_names();
/// Throws OptionError that lists the names when `name` is unknown.
QKV_API std::unique_ptr<Layer> make_layer(std::string_view name, const LayerConfig& config);
/// Made and loaded: sizes that `config` leaves 0 (embed_dim, d_k, length, head_dim, num_kv_heads) are those of the
/// tensors in `state`. num_heads too where they allow only one; otherwise it must be given, and the OptionError lists
/// what they allow.
QKV_API std::unique_ptr<Layer> load_layer(std::string_view name, const StateDict& state, LayerConfig config = {});

/// The numbers of heads with which a layer of this name fits the weights in `state`, ascending: weights alone do not
/// say which. {1} for layers without heads; empty where no weights of attention are found.
QKV_API std::vector<Index> possible_heads(std::string_view name, const StateDict& state);

}  // namespace qkv::inline v0::nn
