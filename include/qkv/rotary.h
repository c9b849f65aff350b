// Rotary positions: pairs of numbers of a query or key are rotated by an angle that grows with its position, so that
// q.k depends on the distance of the two alone.
//
//   y[first]  = a (x[first] cos - x[second] sin)       angle = position * frequency[i], always computed in f64
//   y[second] = a (x[second] cos + x[first] sin)       frequency[i] = base^(-2i / R), i < R / 2, then scaled
//   pair i:   kHalfSplit (i, i + R/2)                  kInterleaved (2i, 2i + 1)
//   columns R .. D (partial rotation) stay as they are; a is YaRN's attention factor, otherwise 1
//
// Shapes: x, y [B, H, T, D], strided, last stride 1. R = rotary_dim. Su 2021 (RoFormer, arXiv:2104.09864) sec. 3.4.2.
// Errors: OptionError (options), ShapeError (sizes, strides, overlap). Thread safety: const, any number of calls at
// once.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "qkv/context.h"
#include "qkv/tensor.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// The two columns of a pair. Weights trained with one layout give nonsense under the other.
enum class RotaryLayout {
  kHalfSplit,   ///< (i, i + R/2): Hugging Face's Llama, GPT-NeoX
  kInterleaved  ///< (2i, 2i + 1): RoFormer, GPT-J, Meta's own Llama weights
};

/// How frequencies are changed for contexts longer than those that were trained.
enum class RotaryScaling {
  kNone,
  kLinear,  ///< f / factor: positions are compressed. Chen 2023, arXiv:2306.15595
  kNtk,     ///< base * factor^(R / (R - 2)): fast pairs stay, slow ones are stretched ("NTK-aware", bloc97 2023)
  kYarn,    ///< slow pairs f / factor, fast ones f, a ramp in between; attention factor. Peng 2023, arXiv:2309.00071
  kLlama3   ///< like YaRN, with a ramp over wavelength / original_context; no attention factor (Llama 3.1's code)
};

struct RotaryOptions {
  Index rotary_dim = 0;  ///< R, even; 0: the whole head width
  double base = 10000;   ///< > 0, not 1
  RotaryLayout layout = RotaryLayout::kHalfSplit;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;                         ///< >= 1; kNone: 1
  Index original_context = 0;                ///< kYarn, kLlama3: context length in training, >= 1
  double beta_fast = 32, beta_slow = 1;      ///< kYarn: turns within original_context where the ramp ends and begins
  std::optional<double> attention_factor{};  ///< kYarn; none: 1 + 0.1 ln(factor)
  double low_frequency = 1,
         high_frequency = 4;  ///< kLlama3: turns within original_context where the ramp begins and ends

  bool operator==(const RotaryOptions&) const = default;
};

/// Positions of the tokens. Of ids, offsets and offset, the first that is given counts.
struct RotaryPositions {
  Index offset = 0;                  ///< token t has position offset + t
  std::span<const Index> offsets{};  ///< [B]: token t of sequence b has position offsets[b] + t
  View<const Index, 2> ids{};        ///< [B|1, T]: token t of sequence b has position ids[b, t]
};

class QKV_API Rotary {
 public:
  explicit Rotary(Index head_dim, const RotaryOptions& options = {});
  /// From tables of cosines and sines [positions, R / 2], which are copied and need not be those of angles (ONNX's
  /// RotaryEmbedding, models that scale theirs). A call throws OptionError for a position that they do not have.
  Rotary(Index head_dim, View<const float, 2> cosines, View<const float, 2> sines,
      RotaryLayout layout = RotaryLayout::kHalfSplit);
  Rotary(Index head_dim, View<const double, 2> cosines, View<const double, 2> sines,
      RotaryLayout layout = RotaryLayout::kHalfSplit);

  Index head_dim() const { return head_dim_; }
  Index rotary_dim() const { return 2 * pairs_; }
  /// Radians per position, [R / 2]; empty where there are tables.
  std::span<const double> frequencies() const { return frequencies_; }
  double attention_factor() const { return attention_factor_; }

  /// y = x rotated; y may be x itself. Results are rounded once; cos and sin are rounded to the type of sums.
  template <Operand X> void forward(const X& x, Out<X, 4> y, const RotaryPositions& positions = {},
      Context& context = Context::default_context()) const {
    turn("Rotary::forward", In<X, 4>(x), y, positions, 1, context);
  }

  /// Computes dx from dy: the inverse rotation, times the attention factor; with tables the transposed map. dx may be
  /// dy itself.
  template <Operand X> void backward(const X& dy, Out<X, 4> dx, const RotaryPositions& positions = {},
      Context& context = Context::default_context()) const {
    turn("Rotary::backward", In<X, 4>(dy), dx, positions, -1, context);
  }

 private:
  void turn(const char* function, const AnyView& x, const AnyView& y, const RotaryPositions& positions,
      double direction, Context& context) const;

  Index head_dim_;
  RotaryLayout layout_;
  Index pairs_;                      // R / 2
  std::vector<double> frequencies_;  // [R / 2], or empty
  std::vector<double> tables_;       // [positions, 2, R / 2]: cosines, sines; or empty
  double attention_factor_ = 1;
};

}  // namespace qkv::inline v0
