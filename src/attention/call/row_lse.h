// A row's lse in the form that kernels recompute weights from: in powers of two, as high + low.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "attention/call/problem.h"
#include "core/maths.h"

namespace qkv::inline v0 {

/// Whether an lse may be too coarse: rounded to its type it shifts every weight of its row by up to half an ulp, 4 eps
/// at 16.
template <class Sum> bool is_coarse(Sum lse) { return std::isfinite(lse) && std::abs(lse) > 16; }

/// (lse + lost) * log2(e) as high + low, +inf for an empty row and for a sum of infinity (exp2(s - inf) = 0).
template <class Sum> [[gnu::noinline]] void split(Sum lse, Sum lost, Sum& high, Sum& low) {
  maths::Wide exact{(static_cast<double>(lse) + static_cast<double>(lost)) * std::numbers::log2e, 0};
  if constexpr (std::is_same_v<Sum, double>) exact = maths::product({lse, lost}, maths::kLog2e);
  high = std::isinf(lse) ? std::abs(lse) : static_cast<Sum>(exact.high);
  low = std::isfinite(lse) ? static_cast<Sum>(exact.high - static_cast<double>(high) + exact.low) : Sum{0};
}

/// Whether an lse and its rounding error in this type, together, are too coarse: rows whose scores are all a fill of
/// -1e20 or finfo.min.
template <class Sum> bool is_vast(Sum lse) { return std::abs(lse) * std::numeric_limits<Sum>::epsilon() > Sum{1} / 16; }

/// shift + log2(sum) as high + low, of which low keeps the logarithm where high absorbs it.
template <class Sum> void split_sum(Sum shift, Sum sum, Sum& high, Sum& low) {
  const double rest = maths::log(static_cast<double>(sum)) * std::numbers::log2e, wide = static_cast<double>(shift);
  high = static_cast<Sum>(wide + rest);
  low = static_cast<Sum>(wide - static_cast<double>(high) + rest);
}

/// The lse of one query tile in two parts [q_count], with its rounding error where `lost` is given and not NaN.
/// Returns whether any other lse is coarse. lse, lost: [B, H, Tq].
template <class Sum> bool split_given_lse(const Problem& p, const AnyView& lse, const AnyView& lost, Index b, Index h,
    Index q_begin, Index q_count, Sum* high, Sum* low) {
  bool coarse = false;
  for (Index i = 0; i < q_count; ++i) {
    const Index row = q_begin - p.first_query + i;
    const Sum value = *lse.as<Sum>(b, h, row);
    const bool matters = is_coarse(value);
    const Sum rest = matters && lost.data != nullptr ? *lost.as<Sum>(b, h, row) : Sum{0};
    const bool known = std::isfinite(rest) && lost.data != nullptr && !is_vast(value);
    split(value, known ? rest : Sum{0}, high[i], low[i]);
    coarse |= matters && !known;
  }
  return coarse;
}

/// The same. Where one is coarse (huge logits) and `lost` does not hold its rounding error, the tile's forward over all
/// of its keys is computed again, a fifth of backward's work for that tile, and counts where it gives exactly the lse
/// that was given; an lse that covers more keys (merged parts) is used as it is.
template <class Sum> void split_lse(const Problem& p, const AnyView& lse, const AnyView& lost, Index b, Index h,
    Index q_begin, Index q_count, Sum* high, Sum* low, void* scratch) {
  if (!split_given_lse(p, lse, lost, b, h, q_begin, q_count, high, low)) return;
  Sum row_lse[kMaxQueryTile], row_low[kMaxQueryTile], shift[kMaxQueryTile], sum[kMaxQueryTile];
  ForwardTile<Sum> tile = p.forward_tile<Sum>(b, h, {q_begin, q_begin + q_count});
  tile.lse = row_lse;
  tile.lse_low = row_low;
  tile.row_max2 = shift;
  tile.row_sum = sum;
  run_forward(p.kernels<Sum>(), tile, scratch);
  for (Index i = 0; i < q_count; ++i) {
    const Sum given = *lse.as<Sum>(b, h, q_begin - p.first_query + i);
    if (!is_coarse(given) || row_lse[i] != given) continue;
    if (is_vast(given)) {
      split_sum(shift[i], sum[i], high[i], low[i]);
    } else {
      split(given, row_low[i], high[i], low[i]);
    }
  }
}

}  // namespace qkv::inline v0
