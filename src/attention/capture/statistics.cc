// From the sums of a row to its statistics, in double. H = -sum_j w ln w with w = keys p / sum, p = exp2(s2 - shift):
//   H = keys (ln(sum / p of the largest) - ln2 / sum * sum_j p (s2 - largest) - ln(keys)), keys = 1 - the sink's share.
// No term is larger than H by more than the row's length has it: the shift, which may be far from the largest score,
// is in none of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/capture/capture.h"
#include "core/maths.h"

namespace qkv::inline v0 {
namespace {

constexpr double kNoStatistic = std::numeric_limits<double>::quiet_NaN();

/// The statistics of one row.
struct Row {
  double entropy = 0, max_weight = 0, self = 0, previous = 0, first = 0, distance = 0, sink = 0;
  Index max_key = -1;
};

Row nan_row() {
  return {kNoStatistic, kNoStatistic, kNoStatistic, kNoStatistic, kNoStatistic, kNoStatistic, kNoStatistic, -1};
}

/// The statistics of weights 1/Tk.
Row mean_row(Index position, Index kv_len) {
  const double weight = 1 / static_cast<double>(kv_len);
  const auto at = [&](Index key) { return key >= 0 && key < kv_len ? weight : 0.0; };
  double distance = 0;
  for (Index j = 0; j < kv_len; ++j) distance += weight * std::abs(static_cast<double>(position - j));
  return {maths::log(static_cast<double>(kv_len)), weight, at(position), at(position - 1), weight, distance, 0, 0};
}

template <class Sum> Row row_of(const RowSums<Sum>& sums, Index i, const Sum* sink) {
  const auto number = [i](const Sum* of) { return static_cast<double>(of[i]); };
  const double sum = number(sums.sums), largest = number(sums.largest);
  Row row;
  if (sum == 0) {
    row.sink = sink != nullptr ? 1 : 0;
    return row;
  }
  const double p_of_largest = maths::exp2(largest - number(sums.shift)), log_of_sum = maths::log(sum / p_of_largest);
  // By how much the sink's logit is above the lse of the keys; each share from it, since 1 minus the other would
  // cancel.
  const double above = static_cast<double>(sink != nullptr ? *sink : -std::numeric_limits<Sum>::infinity()) -
                       (largest * std::numbers::ln2 + log_of_sum);
  row.sink = 1 / (1 + maths::exp(-above));
  const double keys = 1 / (1 + maths::exp(above)), scale = keys / sum;
  const double of_keys = log_of_sum - std::numbers::ln2 * number(sums.exponents) / sum;
  row.entropy = keys > 0 ? std::max(0.0, keys * (of_keys - maths::log(keys))) : 0;
  row.max_weight = p_of_largest * scale;
  row.max_key = sums.largest_key[i];
  row.self = number(sums.self) * scale;
  row.previous = number(sums.previous) * scale;
  row.first = number(sums.first) * scale;
  row.distance = number(sums.distances) * scale;
  return row;
}

}  // namespace

template <class Sum> void CaptureJob<Sum>::write_statistics(
    const RowSums<Sum>& sums, const ForwardTile<Sum>& tile, Index b, Index slot) const {
  RowStatistics& s = result_->statistics;
  const Index first = (b * slots() + slot) * p_.q_len + tile.q_begin;
  for (Index i = 0; i < tile.q_count; ++i) {
    const bool empty = tile.lse[i] == -std::numeric_limits<Sum>::infinity();
    Row row;
    if (empty && p_.empty_row == EmptyRow::kMean && p_.length(b) > 0) {
      row = mean_row(tile.q_begin + i + sums.offset, p_.length(b));
    } else if (std::isnan(tile.lse[i]) || (empty && p_.empty_row == EmptyRow::kNaN && p_.length(b) > 0)) {
      row = nan_row();
    } else if (!empty) {
      row = row_of<Sum>(sums, i, tile.scores.sink);
    }
    const Index at = first + i;
    s.entropy.data()[at] = row.entropy;
    s.max_weight.data()[at] = row.max_weight;
    s.max_key.data()[at] = row.max_key;
    s.self.data()[at] = row.self;
    s.previous.data()[at] = row.previous;
    s.first.data()[at] = row.first;
    s.distance.data()[at] = row.distance;
    s.sink.data()[at] = row.sink;
  }
}

template void CaptureJob<float>::write_statistics(const RowSums<float>&, const ForwardTile<float>&, Index, Index) const;
template void CaptureJob<double>::write_statistics(
    const RowSums<double>&, const ForwardTile<double>&, Index, Index) const;

}  // namespace qkv::inline v0
