// The kind of a head, from sums of its weights: previous, self, duplicate, induction, local, diffuse, first, or mixed
// (docs/explore.md, "What a head is called"). The mass on the first keys (a sink, and a learned one) is set apart; the
// sums are over the rest of each row, r:
//   share   = sum_i (weights on the pairs in question) / sum_i r_i, over the queries with such a pair and another key
//   score   = (share - chance) / (1 - chance), chance: the share of a head with equal weights on its other keys
//   diffuse = sum_i r_i H_i / sum_i r_i ln n_i, H_i the entropy of the rest divided by r_i, n_i its keys
// A kind is said where its score (of first and diffuse: its share) reaches a threshold; of several the simplest, in the
// order of docs/explore.md. Weights are computed pair by pair: memory is of the order of a row. Olsson 2022
// (arXiv:2209.11895) for induction and previous-token heads, Wang 2022 (2211.00593) for duplicate-token heads,
// Xiao 2023 (2309.17453) for sinks.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/mask.h"

namespace qkv::inline v0::view {

/// One sequence of a call of attention: what weights of its pairs follow from, and the statistics of its rows. Query i
/// stands at key i + offset.
///   weight(h, i, j) = exp(softcap(scale q_i.k_j) + bias - lse_i) where the mask keeps (i, j)
struct QKV_API HeadCall {
  View<const float, 3> q, k;                     ///< [H, Tq, D], [Hkv, Tk, D], last axis contiguous
  View<const double, 2> lse, entropy{}, sink{};  ///< [H, Tq]; entropy: for kinds; sink: null where there is none
  double scale = 1, softcap = 0;
  std::function<double(Index, Index, Index)> bias{};  ///< (h, i, j); below -1e30 of head 0 it hides the key
  Mask mask{};                                        ///< the same for all heads
  Index batch = 1, sequence = 0;                      ///< of the mask
  Index offset = 0;
  bool same_text = true;                     ///< otherwise only first and diffuse are asked for
  std::vector<Index> ids{};                  ///< [Tk]: equal numbers for equal tokens; empty: not known
  std::vector<Index> starts{};               ///< [Tq]: the first key of each query's text; empty: 0
  std::optional<std::vector<Index>> rows{};  ///< the queries that count, ascending; none: all

  double weight(Index h, Index i, Index j) const;
  /// Whether query i sees each key, [Tk].
  std::vector<std::uint8_t> keeps(Index i) const;
};

struct HeadKind {
  std::string_view kind;
  std::optional<double> share;                              ///< that speaks for it; none: mixed
  double first = 0;                                         ///< mass on the first keys, with a learned sink's
  std::vector<std::pair<std::string_view, double>> shares;  ///< of every other kind that was asked for
};

/// Of every head, over the queries of all calls, whose heads are the same. first: how many keys are set apart; grid:
/// height and width of an image's patches, which begin behind them. Of more than 2,048 queries of a call every n-th
/// counts.
QKV_API std::vector<HeadKind> kinds_of_heads(
    std::span<const HeadCall> calls, Index first = 1, std::pair<Index, Index> grid = {0, 0});

/// The first key that the mask keeps for each query of a sequence and the one behind the last, [Tq, 2], for the
/// explorer's file; second: whether it keeps all between them. Sizes [B, H, Tq, Tk]; masks are the same for all heads.
QKV_API std::pair<Tensor<float>, bool> key_intervals(
    const Mask& mask, const std::array<Index, 4>& sizes, Index sequence);

/// Weights [H, n, Tk] of some rows, 0 where the mask hides the key.
QKV_API Tensor<double> weights_of_rows(const HeadCall& call, std::span<const Index> rows);

}  // namespace qkv::inline v0::view
