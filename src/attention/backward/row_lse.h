// A row's lse in the form that kernels recompute weights from: in powers of two, as high + low. Not: delta, the other number of
// a row (backward_rows.h).
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "attention/problem.h"

namespace qkv::inline v0 {

/// Whether an lse may be too coarse: rounded to its type it shifts every weight of its row by up to half an ulp, 4 eps at 16.
template <class Sum>
bool is_coarse(Sum lse) {
  return std::isfinite(lse) && std::abs(lse) > 16;
}

/// lse * log2(e) of one query tile as high + low, +inf for an empty row (exp2(s - inf) = 0). Returns whether any lse is coarse.
template <class T>
bool split_given_lse(const Problem<T>& p, const View<const Accumulator<T>, 3>& lse, Index b, Index h, Index q_begin,
                     Index q_count, Accumulator<T>* high, Accumulator<T>* low) {
  using Sum = Accumulator<T>;
  using Wide = std::conditional_t<std::is_same_v<Sum, float>, double, long double>;
  bool coarse = false;
  for (Index i = q_begin; i < q_begin + q_count; ++i) {
    const Sum value = lse(b, h, i - p.first_query);
    const Wide exact = static_cast<Wide>(value) * std::numbers::log2e_v<Wide>;
    high[i] = value == -std::numeric_limits<Sum>::infinity() ? -value : static_cast<Sum>(exact);
    low[i] = std::isfinite(value) ? static_cast<Sum>(exact - static_cast<Wide>(high[i])) : Sum{0};
    coarse |= is_coarse(value);
  }
  return coarse;
}

/// The same from the maxima and sums of a tile whose forward was computed again, where they round to exactly the lse that was
/// given; an lse that covers more keys (rings, merged parts) is used as it is.
template <class T>
void split_sums(const Problem<T>& p, const View<const Accumulator<T>, 3>& lse, Index b, Index h, const ForwardTile<T>& tile,
                Accumulator<T>* high, Accumulator<T>* low) {
  using Sum = Accumulator<T>;
  using Wide = std::conditional_t<std::is_same_v<Sum, float>, double, long double>;
  for (Index i = 0; i < tile.q_count; ++i) {
    const Sum given = lse(b, h, tile.q_begin - p.first_query + i);
    if (!is_coarse(given) || tile.lse[i] != given) continue;
    const Wide exact = static_cast<Wide>(tile.row_max2[i]) + std::log2(static_cast<Wide>(tile.row_sum[i]));
    high[tile.q_begin + i] = static_cast<Sum>(exact);
    low[tile.q_begin + i] = static_cast<Sum>(exact - static_cast<Wide>(high[tile.q_begin + i]));
  }
}

/// The lse of one query tile in two parts. Where one is coarse (huge logits), the rows' maxima and sums are computed again: a
/// fifth of backward's work, for that tile only.
template <class T>
void split_lse(const Problem<T>& p, const View<const Accumulator<T>, 3>& lse, Index b, Index h, Index q_begin, Index q_count,
               Accumulator<T>* high, Accumulator<T>* low, void* scratch) {
  if (!split_given_lse(p, lse, b, h, q_begin, q_count, high, low)) return;
  Accumulator<T> row_lse[kMaxQueryTile], row_sum[kMaxQueryTile], row_max[kMaxQueryTile];
  ForwardTile<T> tile{};
  tile.scores = p.scores(b, h);
  tile.v_head_dim = p.v_head_dim;
  tile.q_begin = q_begin;
  tile.q_count = q_count;
  tile.lse = row_lse;
  tile.row_max2 = row_max;
  tile.row_sum = row_sum;
  p.kernels->forward(tile, scratch);
  split_sums(p, lse, b, h, tile, high, low);
}

}  // namespace qkv::inline v0
