// PositionBias: a bias that depends only on the head and on how far the key lies from the query. It takes memory for
// the distances, H * (Tq + Tk - 1) numbers, never Tq x Tk. An immutable value; tables are borrowed until the call
// returns.
//
//   s[i,j] = softcap(scale * q[i].k[j]) + bias[i,j] + position[h, d]       d = j - i - offset: negative for the past
//
// offset is that of causal(): 0 for kSquare (legal only when Tq == Tk) and kTopLeft, Tk - Tq for kBottomRight, where
// the last query stands at the last key, as in a cache. There are three kinds, each factor(d) * table[row(d), h]:
//   alibi     -slopes[h] * |d|           Press 2022 (arXiv:2108.12409), eq. in section 3; symmetric for later keys
//   t5        table[t5_bucket(d), h]     Raffel 2020 (1910.10683), section 2.1, as Hugging Face's T5Attention has it
//   relative  table[R + clamp(d, -R, R), h]   Shaw 2018 (1803.02155), 3.2, on scores; one axis of Swin (2103.14030)
#pragma once

#include <memory>
#include <vector>

#include "qkv/mask.h"
#include "qkv/view.h"

namespace qkv::inline v0 {

/// 2^(-8 (h + 1) / H) where H is a power of two; otherwise the slopes of the next lower power n, then every
/// second slope of 2 n. [H]
QKV_API std::vector<double> alibi_slopes(Index num_heads);

struct T5Buckets {
  Index num_buckets = 32;     ///< at least 4 when bidirectional, otherwise 2
  Index max_distance = 128;   ///< larger distances share a bucket; more than a quarter (half) of num_buckets
  bool bidirectional = true;  ///< false: later keys share bucket 0
};
/// The bucket of distance key - query. Equal to that of Hugging Face, which rounds logarithms to float.
QKV_API Index t5_bucket(Index distance, const T5Buckets& buckets = {});

class QKV_API PositionBias {
 public:
  /// No bias.
  PositionBias() = default;

  /// OptionError: slopes that are not finite, buckets; ShapeError: rows of the table. A call throws ShapeError where
  /// heads() is not H, OptionError for kSquare where Tq is not Tk and for a table of another type than its sums.
  ///
  /// slopes [H], copied. Their gradient: dposition_bias [1, H].
  static PositionBias alibi(std::vector<double> slopes, Align align = Align::kSquare);
  /// table [num_buckets, H], borrowed; Hugging Face's relative_attention_bias.weight.
  static PositionBias t5(SumsView<2> table, T5Buckets buckets = {}, Align align = Align::kSquare);
  /// table [2 R + 1, H], borrowed; distance d reads row R + d, distances beyond R the last row on their side.
  static PositionBias relative(SumsView<2> table, Align align = Align::kSquare);

  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_alibi() const { return kind_ == Kind::kAlibi; }
  Align align() const { return align_; }
  /// Sizes of its table (or slopes) and of their gradient: rows x heads.
  Index rows() const;
  Index heads() const;
  /// The row of the table that a distance reads, and what it is multiplied by.
  Index row(Index distance) const;
  double factor(Index distance) const {
    return is_alibi() ? -static_cast<double>(distance < 0 ? -distance : distance) : 1;
  }

  const std::vector<double>& slopes() const { return *slopes_; }  ///< only for alibi
  const SumsView<2>& table() const { return table_; }

 private:
  enum class Kind { kNone, kAlibi, kT5, kRelative };
  PositionBias(Kind kind, Align align, SumsView<2> table = {}) : kind_(kind), align_(align), table_(table) {}

  Kind kind_ = Kind::kNone;
  Align align_ = Align::kSquare;
  T5Buckets buckets_{};
  std::shared_ptr<const std::vector<double>> slopes_{};
  SumsView<2> table_;
};

}  // namespace qkv::inline v0
