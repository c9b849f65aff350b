// Values of each row from which backward and second order recompute its weights: lse in powers of two, and delta, both
// computed one query tile at a time. Also the tile as it is passed to kernels, and the gradient of the sinks, which
// needs the same numbers.
//   dsink[h] = -sum over b and i of exp(sink[h] - lse[b,h,i]) * delta[b,h,i]        delta = dout . out - dlse
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/backward/backward_driver.h"
#include "attention/call/problem.h"
#include "attention/call/row_lse.h"
#include "core/maths.h"

namespace qkv::inline v0 {

/// sink log2(e); where lse is restored, rounded as forward does, by log2_of_bias in kernels/attention/scores.h.
template <class Sum> double log2_of_sink(Sum sink) {
  constexpr Sum largest = std::numeric_limits<Sum>::max();
  if (is_coarse(sink)) return static_cast<double>(std::clamp(sink * std::numbers::log2e_v<Sum>, -largest, largest));
  return static_cast<double>(sink) * std::numbers::log2e;
}

template <class Sum> struct BackwardRows {
  const Problem& p;
  AnyView out;                                                      // [B, H, Tq, Dv]; null with dout
  AnyView lse;                                                      // [B, H, Tq]
  AnyView dout;                                                     // [B, H, Tq, Dv]; null: no delta
  AnyView dlse;                                                     // [B, H, Tq]; null: none
  Sum *delta = nullptr, *lse2_high = nullptr, *lse2_low = nullptr;  // [B, H, Tq] each
  Index row_offset = 0;                                             // start of a ragged sequence in the batch
  AnyView lse_low = {};                                             // [B, H, Tq]; null: not known
  const CarriedRanges* carried = nullptr;                           // null: p has every key that lse is of

  Index first_row(Index b, Index h) const { return row_offset + (b * p.num_heads + h) * p.q_len; }

  /// The tile of head h of sequence b and queries, counted in the whole problem; the caller sets keys and gradients.
  BackwardTile<Sum> tile(Index b, Index h, const Positions& queries) const {
    BackwardTile<Sum> t{
        .scores = p.scores<Sum>(b, h), .keys = p.keys.head(b, h / p.group_size()), .v_head_dim = p.v_head_dim};
    // A key that no row of the call reads may be infinite: an added row of zeros would make its gradients NaN.
    if (p.part_mask.mask != nullptr) t.scores.mask = tile_mask_of(p.part_mask, b, p.first_head + h);
    set_queries(t, b, h, queries);
    return t;
  }
  void set_queries(BackwardTile<Sum>& t, Index b, Index h, const Positions& queries) const {
    const Index first = queries.begin - p.first_query, row = first_row(b, h) + first;
    t.q_begin = queries.begin;
    t.q_count = queries.end - queries.begin;
    t.q = rows_at(p.q, b, h, first);
    t.dout = rows_at(dout, b, h, first);
    t.lse2_high = lse2_high + row;
    t.lse2_low = lse2_low + row;
    t.delta = delta + row;
  }

  /// Computes lse2 and, if there is a dout, delta of the tile's queries.
  void prepare(const BackwardTile<Sum>& t, Index b, Index h, void* scratch) const {
    const Index first = t.q_begin - p.first_query, row = first_row(b, h) + first;
    if (carried == nullptr) {
      split_lse(p, lse, lse_low, b, h, t.q_begin, t.q_count, lse2_high + row, lse2_low + row, scratch);
    } else {
      split_given_lse(p, lse, lse_low, b, h, t.q_begin, t.q_count, lse2_high + row, lse2_low + row);
      for (Index i = 0; i < t.q_count && carried->vast_high.data != nullptr; ++i) {
        const Sum high = *carried->vast_high.as<Sum>(b, h, first + i);
        if (std::isnan(high)) continue;
        lse2_high[row + i] = high;
        lse2_low[row + i] = *carried->vast_low.as<Sum>(b, h, first + i);
      }
    }
    if (t.dout.data == nullptr) return;
    run_delta<Sum>(
        p.kernels<Sum>(), {t.dout, rows_at(out, b, h, first), p.v_head_dim, t.q_count, delta + row}, scratch);
    if (dlse.data == nullptr) return;
    for (Index i = 0; i < t.q_count; ++i) delta[row + i] -= *dlse.as<Sum>(b, h, first + i);
  }

  /// The lse of a row without keys, of which rounding cannot tell the head's sink: then the sink itself.
  double log2_of_lse(Sum given, Index h) const {
    const double exact = log2_of_sink(given);
    const double sink = p.sinks.is_null() ? exact : log2_of_sink(*p.sinks.as<Sum>(p.first_head + h, 0));
    constexpr double few = 4 * static_cast<double>(std::numeric_limits<Sum>::epsilon());
    return is_coarse(given) && std::abs(exact - sink) <= few * std::abs(sink) ? sink : exact;
  }

  /// The same for every row of `count` sequences without keys: out is 0, and lse is the sink or -inf.
  void prepare_without_keys(Index first, Index count) const {
    for (Index b = first; b < first + count; ++b) {
      for (Index h = 0; h < p.num_heads; ++h) {
        for (Index i = 0; i < p.q_len; ++i) {
          const Index row = first_row(b, h) + i;
          delta[row] = dlse.data == nullptr ? Sum{0} : -*dlse.as<Sum>(b, h, i);
          const double exact = log2_of_lse(*lse.as<Sum>(b, h, i), h);
          lse2_high[row] = static_cast<Sum>(std::isinf(exact) ? std::abs(exact) : exact);  // +inf: weight 0
          lse2_low[row] = std::isinf(exact) ? Sum{0} : static_cast<Sum>(exact - static_cast<double>(lse2_high[row]));
        }
      }
    }
  }
};

/// dsinks[h] += sum over sequences [first, first + count) and their queries of exp(sink[h] - lse) * of_row(row, h).
/// Runs after all items and adds the rows in one order. exp(sink - lse) is the sink's weight.
template <class Sum, class OfRow> void add_sink_gradient(
    const BackwardRows<Sum>& rows, Index first, Index count, const AnyView& dsinks, const OfRow& of_row) {
  const Problem& p = rows.p;
  for (Index h = 0; h < p.num_heads; ++h) {
    const double sink2 = log2_of_sink(*p.sinks.as<Sum>(p.first_head + h, 0));
    double sum = 0;
    for (Index b = first; b < first + count; ++b) {
      for (Index row = rows.first_row(b, h), end = row + p.q_len; row < end; ++row) {
        const double weight =
            maths::exp2(sink2 - static_cast<double>(rows.lse2_high[row]) - static_cast<double>(rows.lse2_low[row]));
        sum += weight == 0 ? 0 : weight * of_row(row, h);
      }
    }
    Sum& whole = *dsinks.as<Sum>(p.first_head + h, 0);
    whole = static_cast<Sum>(static_cast<double>(whole) + sum);
  }
}

/// The private memory of a worker: the sizes of its pieces, and the pieces.
struct OwnBytes {
  std::size_t kernel = 0, bias = 0, position = 0, sums = 0;
  std::size_t all() const { return kernel + bias + position + sums; }
};
template <class Sum> struct OwnScratch {
  std::byte* kernel;
  Sum *bias, *position;  // dbias summed over queries, dposition
  std::byte* sums;       // for 16-bit types (gradient_sums.h)

  OwnScratch(const OwnBytes& bytes, std::byte* base)
      : kernel(base),
        bias(reinterpret_cast<Sum*>(kernel + bytes.kernel)),
        position(reinterpret_cast<Sum*>(kernel + bytes.kernel + bytes.bias)),
        sums(kernel + bytes.kernel + bytes.bias + bytes.position) {}
};

}  // namespace qkv::inline v0
