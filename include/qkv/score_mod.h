// ScoreMod: a callback that changes scores, after soft cap and bias, before the mask (FlexAttention's score_mod).
//
//   s'[b,h,i,j] = mod(s[b,h,i,j], b, h, i, j)         a pair whose result is -inf is not kept, as with a bias of -inf
//   ds = ds' * slope(s, b, h, i, j)                   slope = d mod / d s, needed by attention_backward only
//
// It is called from many threads at once, for pairs in any order, more than once for some, and for pairs that the mask
// hides (whose result is not read); so it must be a pure function. It may throw: the first exception reaches the caller
// of the attention function, whose outputs are then unspecified. A callback's variables have no gradient; bias and
// PositionBias have one. Dong et al. 2024, "FlexAttention" (arXiv:2412.05496).
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "qkv/export.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// Scores of some queries and keys of one (batch, head): element (i, j) is query first_query + i and key first_key + j.
template <class T> struct ScoreBlock {
  Index batch = 0, head = 0, first_query = 0, first_key = 0;
  View<T, 2> scores;  ///< [queries, keys], strided: scores in natural units, to be replaced by the new scores
  View<T, 2> slopes;  ///< [queries, keys], strided: to be filled with the slopes at the original scores; or null
};

class QKV_API ScoreMod {
 public:
  virtual ~ScoreMod();
  /// The float version serves f32 and the 16-bit types, the double version f64.
  virtual void apply(const ScoreBlock<float>& block) const = 0;
  virtual void apply(const ScoreBlock<double>& block) const = 0;
  /// Whether apply() can fill slopes. If not, attention_backward throws an OptionError.
  virtual bool has_slope() const = 0;
};

/// The result of score_mod(): value and slope are called pair by pair, inlined into one loop.
template <class Value, class Slope> class ElementwiseScoreMod final : public ScoreMod {
 public:
  ElementwiseScoreMod(Value value, Slope slope) : value_(std::move(value)), slope_(std::move(slope)) {}
  void apply(const ScoreBlock<float>& block) const override { apply_to(block); }
  void apply(const ScoreBlock<double>& block) const override { apply_to(block); }
  bool has_slope() const override { return kHasSlope; }

 private:
  static constexpr bool kHasSlope = !std::is_same_v<Slope, std::nullptr_t>;

  template <class T> void apply_to(const ScoreBlock<T>& block) const {
    for (Index j = 0; j < block.scores.size(1); ++j) {
      for (Index i = 0; i < block.scores.size(0); ++i) {
        const T score = block.scores(i, j);
        const Index query = block.first_query + i, key = block.first_key + j;
        if constexpr (kHasSlope) {
          if (block.slopes.data() != nullptr) {
            block.slopes(i, j) = static_cast<T>(slope_(score, block.batch, block.head, query, key));
          }
        }
        block.scores(i, j) = static_cast<T>(value_(score, block.batch, block.head, query, key));
      }
    }
  }

  Value value_;
  Slope slope_;
};

/// value(score, b, h, i, j) -> score and slope(score, b, h, i, j) -> d value / d score; the score is a float or a
/// double. Without slope there is no backward.
///   options.score_mod = score_mod([](auto s, Index, Index, Index i, Index j) { return s - 0.01f * std::abs(i - j); },
///                                 [](auto, Index, Index, Index, Index) { return 1; });
template <class Value, class Slope = std::nullptr_t>
std::shared_ptr<const ScoreMod> score_mod(Value value, Slope slope = {}) {
  return std::make_shared<ElementwiseScoreMod<Value, Slope>>(std::move(value), std::move(slope));
}

}  // namespace qkv::inline v0
