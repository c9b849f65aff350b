// A row's lse in the form that kernels recompute weights from: in powers of two, as high + low. Not: delta, the other number of
// a row (backward_rows.h).
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "attention/problem.h"

namespace qkv::inline v0 {

/// lse * log2(e) of one query tile as high + low, +inf for an empty row (exp2(s - inf) = 0).
/// An lse rounded to T shifts every weight of its row by up to half an ulp of lse: 4 eps at 16. Where an lse is larger
/// (huge logits), the row's maximum and sum are recomputed (a fifth of backward's work, for that tile only) and used if they
/// round to exactly the lse that was given; an lse that covers more keys (rings, merged parts) is used as it is.
template <class T>
void split_lse(const Problem<T>& p, const View<const Accumulator<T>, 3>& lse, Index b, Index h, Index q_begin, Index q_count,
               Accumulator<T>* high, Accumulator<T>* low, void* scratch) {
  using Sum = Accumulator<T>;
  constexpr Sum trusted = 16;
  using Wide = std::conditional_t<std::is_same_v<Sum, float>, double, long double>;
  bool recompute = false;
  for (Index i = q_begin; i < q_begin + q_count; ++i) {
    const Sum value = lse(b, h, i - p.first_query);
    const Wide exact = static_cast<Wide>(value) * std::numbers::log2e_v<Wide>;
    high[i] = value == -std::numeric_limits<Sum>::infinity() ? -value : static_cast<Sum>(exact);
    low[i] = std::isfinite(value) ? static_cast<Sum>(exact - static_cast<Wide>(high[i])) : Sum{0};
    recompute |= std::isfinite(value) && std::abs(value) > trusted;
  }
  if (!recompute) return;
  Sum row_lse[kMaxQueryTile], row_sum[kMaxQueryTile], row_max[kMaxQueryTile];
  ForwardTile<T> tile{};
  tile.scores = p.scores(b, h);
  tile.v_head_dim = p.v_head_dim;
  tile.q_begin = q_begin;
  tile.q_count = q_count;
  tile.lse = row_lse;
  tile.row_max2 = row_max;
  tile.row_sum = row_sum;
  p.kernels->forward(tile, scratch);
  for (Index i = 0; i < q_count; ++i) {
    const Sum given = lse(b, h, q_begin - p.first_query + i);
    if (!std::isfinite(given) || std::abs(given) <= trusted || row_lse[i] != given) continue;
    const Wide exact = static_cast<Wide>(row_max[i]) + std::log2(static_cast<Wide>(row_sum[i]));
    high[q_begin + i] = static_cast<Sum>(exact);
    low[q_begin + i] = static_cast<Sum>(exact - static_cast<Wide>(high[q_begin + i]));
  }
}

}  // namespace qkv::inline v0
