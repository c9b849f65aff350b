// The one list of attention cases that drives the tests, the sweep and the gradient checks.
// To add a value: add it to its list in option_values(); the pairwise list then holds it together with every other
// value.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/cases/caches.h"
#include "support/cases/mask_case.h"
#include "support/cases/modifier_case.h"
#include "support/storage.h"

namespace qkv::test {

enum class BiasKind {
  kNone,
  kFull,          ///< [B, H, Tq, Tk]
  kKeys,          ///< [B, 1, 1, Tk]
  kHeads,         ///< [1, H, Tq, Tk]
  kQueries,       ///< [B, H, Tq, 1]
  kSquare,        ///< [1, 1, Tq, Tk]
  kWithInfinity,  ///< [B, H, Tq, Tk], a quarter of it -inf, some rows -inf throughout
  kKeysInfinity,  ///< [B, 1, 1, Tk] of 0 and -inf: a mask written as a bias
  kTransposed     ///< [1, H, Tq, Tk] whose last stride is not 1
};
inline constexpr std::array kBiasNames = {
    "none", "full", "keys", "heads", "queries", "square", "fullinf", "keysinf", "transposed"};

enum class ScaleKind { kDefault, kZero, kNegative, kExplicit };
inline constexpr std::array kScaleNames = {"default", "zero", "negative", "explicit"};

enum class Fill {
  kUniform,
  kHugeLogits,    ///< scores around +-1e4
  kOneHot,        ///< each row of weights close to 1 on one key
  kConstantV,     ///< v = 1 everywhere
  kNanBehindMask  ///< keys and values that no kept pair reads are NaN or infinite
};
inline constexpr std::array kFillNames = {"uniform", "huge", "onehot", "v1", "nan"};
inline constexpr std::array kEmptyRowNames = {"zero", "mean", "nan"};

/// AttentionCase{B, H, Hkv, Tq, Tk, D, Dv, mask, bias}: sizes first; what follows is none or the default.
struct AttentionCase {
  Index batch = 1, num_heads = 1, num_kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, v_head_dim = 1;
  MaskKind mask = MaskKind::kNone;
  BiasKind bias = BiasKind::kNone;
  double softcap = 0;
  ScaleKind scale = ScaleKind::kDefault;
  double dropout = 0;
  EmptyRow empty_row = EmptyRow::kZero;
  Layout layout = Layout::kBhtd;
  Fill fill = Fill::kUniform;
  std::uint64_t seed = 1;
  SinkKind sinks = SinkKind::kNone;
  PositionKind position = PositionKind::kNone;
  ModKind mod = ModKind::kNone;
  CacheKind cache = CacheKind::kNone;  // forward reads k and v from one
  Index lists = 0, list_width = 0;     // the mask lists so many keys of each query too: [B, lists, Tq, list_width]

  /// "b1_h8_kv2_tq1_tk4096_d128_dv128_causal": what is not named is off or the default.
  std::string name() const;

  bool legal() const;

  /// Multiplications of the reference, forward.
  double work() const {
    return static_cast<double>(batch * num_heads * q_len * kv_len) * static_cast<double>(head_dim + v_head_dim);
  }
};

enum class Option : std::size_t {
  kHeads,
  kLengths,
  kWidths,
  kMask,
  kBias,
  kLayout,
  kFill,
  kSoftcap,
  kScale,
  kDropout,
  kEmptyRow,
  kSinks,
  kPosition,
  kMod,
  kCache
};
/// A choice of one value for each option, as indices into option_values().
inline constexpr std::size_t kNumOptions = static_cast<std::size_t>(Option::kCache) + 1;
using Choice = std::array<std::size_t, kNumOptions>;

namespace case_values {
inline constexpr std::array<std::array<Index, 3>, 5> kHeads = {{{1, 1, 1}, {2, 3, 3}, {1, 4, 2}, {3, 2, 1}, {2, 6, 2}}};
inline constexpr std::array<std::array<Index, 2>, 13> kLengths = {{{1, 1}, {1, 17}, {17, 17}, {3, 40}, {40, 3},
    {64, 64}, {113, 203}, {203, 113}, {33, 1}, {1, 700}, {130, 130}, {16, 512}, {300, 70}}};
inline constexpr std::array<std::array<Index, 2>, 16> kWidths = {{{1, 1}, {3, 3}, {3, 5}, {17, 1}, {40, 40}, {59, 64},
    {64, 64}, {80, 80}, {64, 111}, {111, 111}, {128, 128}, {128, 40}, {256, 256}, {512, 512}, {728, 728}, {768, 768}}};
inline constexpr std::array kCaches = {CacheKind::kNone, CacheKind::kContiguous, CacheKind::kPages16};
inline constexpr std::array kSoftcaps = {0.0, 5.0, 30.0};
inline constexpr std::array kDropouts = {0.0, 0.1, 0.5, 1.0};
}  // namespace case_values

/// How many values each option has, in the order of Option.
Choice option_values();
AttentionCase case_of(const Choice& choice, std::uint64_t seed);

/// Largest work() of a generated case: the references of one then take some tenths of a second.
inline constexpr double kPairwiseWork = 3e6;

/// Every legal pair of values of two options, in few cases. Greedy: an uncovered pair is fixed, the rest drawn at
/// random many times, and the draw that covers most is taken. Seed fixed, so the list is the same everywhere.
std::vector<AttentionCase> pairwise_cases(double max_work = kPairwiseWork);

/// Empty sizes and the corners that no generator finds.
std::vector<AttentionCase> edge_cases();

/// Several parts of keys, items, chunks of keys; no query, no key.
std::vector<AttentionCase> long_cases();

}  // namespace qkv::test
