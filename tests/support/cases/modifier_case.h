// Modifiers of scores besides a bias: sinks, position biases, callbacks, each with what the
// reference needs of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "qkv/position_bias.h"
#include "qkv/score_mod.h"

namespace qkv::test {

enum class SinkKind {
  kNone,
  kUniform,  ///< in [-2, 2)
  kStrong,   ///< in [18, 22): most of the mass
  kSome      ///< every second head has none (-inf)
};
inline constexpr std::array kSinkNames = {"none", "uniform", "strong", "some"};

enum class PositionKind { kNone, kAlibi, kT5, kT5OneSided, kRelative };
inline constexpr std::array kPositionNames = {"none", "alibi", "t5", "t5past", "relative"};

enum class ModKind {
  kNone,
  kBend,  ///< 10 s / sqrt(100 + s^2) - |i - j| / 20 + h / 10
  kHide   ///< s / 2 + b / 8, and -inf for a third of the pairs
};
inline constexpr std::array kModNames = {"none", "bend", "hide"};

inline bool mod_hides(ModKind kind, Index h, Index i, Index j) {
  return kind == ModKind::kHide && (i + 2 * j + h) % 3 == 0;
}

template <class T> T mod_value(ModKind kind, T score, Index b, Index h, Index i, Index j) {
  if (kind == ModKind::kHide) {
    return mod_hides(kind, h, i, j) ? -std::numeric_limits<T>::infinity() : score / 2 + static_cast<T>(b) / 8;
  }
  const T away = static_cast<T>(i < j ? j - i : i - j);
  return 10 * score / std::sqrt(100 + score * score) - away / 20 + static_cast<T>(h) / 10;
}
template <class T> T mod_slope(ModKind kind, T score, Index h, Index i, Index j) {
  if (kind == ModKind::kHide) return mod_hides(kind, h, i, j) ? T(0) : T(0.5);
  const T root = std::sqrt(100 + score * score);
  return 1000 / (root * root * root);
}
/// |d slope / d score|: how an error of the score moves the slope.
inline double mod_curvature(ModKind kind, double score) {
  return kind == ModKind::kBend ? 3000 * std::abs(score) / std::pow(100 + score * score, 2.5) : 0;
}

inline std::shared_ptr<const ScoreMod> make_mod(ModKind kind) {
  if (kind == ModKind::kNone) return nullptr;
  return score_mod([kind](auto s, Index b, Index h, Index i, Index j) { return mod_value(kind, s, b, h, i, j); },
      [kind](auto s, Index, Index h, Index i, Index j) { return mod_slope(kind, s, h, i, j); });
}

/// Sizes of what a position bias is made from: [rows, H].
inline Index position_rows(PositionKind kind) {
  switch (kind) {
    case PositionKind::kNone: return 0;
    case PositionKind::kAlibi: return 1;
    case PositionKind::kT5: return 32;
    case PositionKind::kT5OneSided: return 8;
    case PositionKind::kRelative: return 11;
  }
  return 0;
}

inline T5Buckets buckets_of(PositionKind kind) {
  if (kind == PositionKind::kT5) return {};
  return {.num_buckets = 8, .max_distance = 20, .bidirectional = false};
}

inline Align position_align(Index q_len, Index kv_len, std::uint64_t seed) {
  if (q_len == kv_len) return Align::kSquare;
  return seed % 2 == 0 ? Align::kTopLeft : Align::kBottomRight;
}

/// `table` [rows, H]; of ALiBi the slopes.
template <class T> PositionBias make_position(PositionKind kind, const Tensor<T>& table, Align align) {
  switch (kind) {
    case PositionKind::kNone: return {};
    case PositionKind::kAlibi: return PositionBias::alibi({table.span().begin(), table.span().end()}, align);
    case PositionKind::kRelative: return PositionBias::relative(View<const T, 2>(table), align);
    default: return PositionBias::t5(View<const T, 2>(table), buckets_of(kind), align);
  }
}

/// The reference's own way from a distance to a row and a factor.
inline Index position_row(PositionKind kind, Index distance) {
  if (kind == PositionKind::kAlibi) return 0;
  if (kind == PositionKind::kRelative) return std::min<Index>(std::max<Index>(distance + 5, 0), 10);
  return t5_bucket(distance, buckets_of(kind));
}
inline double position_factor(PositionKind kind, Index distance) {
  return kind == PositionKind::kAlibi ? -std::abs(static_cast<double>(distance)) : 1;
}

}  // namespace qkv::test
