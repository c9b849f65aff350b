// Expected captures, made by plain loops from a matrix of weights (or of weights times gradient). Made three
// times, the rule of expect.h bounds the error: from the truth, from the naive matrix in the naive type, and from A,
// the matrix with every term made positive.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "support/checks/expect.h"

namespace qkv::test {

/// The request of a case. Odd seeds capture every other head, from the last.
inline Capture capture_of(const AttentionCase& c) {
  Capture what;
  for (Index h = c.num_heads - 1; c.seed % 2 == 1 && h >= 0; h -= 2) what.heads.push_back(h);
  for (const Index i : {c.q_len - 1, Index{0}, c.q_len / 2}) {
    if (i >= 0 && i < c.q_len && std::ranges::find(what.rows, i) == what.rows.end()) what.rows.push_back(i);
  }
  what.top_k = static_cast<Index>(1 + c.seed % 7);
  what.statistics = true;
  what.column_mass = true;
  what.map_rows = c.seed % 4 == 0 ? 2 * c.q_len + 3 : std::max<Index>(1, c.q_len / 3);
  what.map_columns = std::max<Index>(1, c.seed % 3 == 0 ? c.kv_len : c.kv_len / 7);
  return what;
}

inline std::vector<Index> heads_of(const Capture& what, Index num_heads) {
  std::vector<Index> heads = what.heads;
  for (Index h = 0; what.heads.empty() && h < num_heads; ++h) heads.push_back(h);
  return heads;
}

inline constexpr std::array kSumNames = {"rows", "map", "columns"};
inline constexpr std::array kStatisticNames = {"entropy", "max", "self", "previous", "first", "distance"};
inline constexpr std::size_t kNumSums = kSumNames.size(), kNumStatistics = kStatisticNames.size();

/// The library's numbers in the order of the names.
inline std::vector<const Tensor<double>*> numbers_of(const CaptureResult& found) {
  const RowStatistics& s = found.statistics;
  return {&found.rows, &found.map, &found.column_mass, &s.entropy, &s.max_weight, &s.self, &s.previous, &s.first,
      &s.distance};
}

/// The same from a matrix [B, H, Tq, Tk] of type C. `exact` is the true matrix if this one is A, otherwise null.
template <class C> class Captured {
 public:
  Captured(const Tensor<C>& matrix, const Capture& what, const Tensor<C>* exact = nullptr)
      : what_(what), exact_(exact) {
    const View<const C, 4> w = matrix;
    const std::vector<Index> heads = heads_of(what, w.size(1));
    const Index batch = w.size(0), count = static_cast<Index>(heads.size()), q_len = w.size(2);
    kv_len_ = w.size(3), q_len_ = q_len;
    rows_ = Tensor<C>({batch, count, static_cast<Index>(what.rows.size()), kv_len_});
    map_ = Tensor<C>({batch, count, what.map_rows, what.map_columns});
    columns_ = Tensor<C>({batch, count, kv_len_});
    for (Tensor<C>& each : statistics_) each = Tensor<C>({batch, count, q_len});
    for_each_index({batch, count, q_len}, [&](Index b, Index n, Index i) {
      const Index row = (b * w.size(1) + heads[static_cast<std::size_t>(n)]) * q_len + i;
      add_row(
          b * count + n, i, matrix.data() + row * kv_len_, exact == nullptr ? nullptr : exact->data() + row * kv_len_);
    });
  }

  std::vector<const Tensor<C>*> numbers() const {
    std::vector<const Tensor<C>*> all = {&rows_, &map_, &columns_};
    for (const Tensor<C>& each : statistics_) all.push_back(&each);
    return all;
  }

 private:
  void add_row(Index head, Index i, const C* w, const C* exact) {
    const Index num_rows = static_cast<Index>(what_.rows.size());
    for (Index r = 0; r < num_rows; ++r) {
      if (what_.rows[static_cast<std::size_t>(r)] == i)
        std::copy_n(w, kv_len_, rows_.data() + (head * num_rows + r) * kv_len_);
    }
    for (Index j = 0; j < kv_len_; ++j) {
      columns_.data()[head * kv_len_ + j] += w[j];
      const Index cell = i * what_.map_rows / q_len_ * what_.map_columns + j * what_.map_columns / kv_len_;
      map_.data()[head * what_.map_rows * what_.map_columns + cell] += w[j];
    }
    const std::array<C, kNumStatistics> numbers = exact == nullptr ? statistics(i, w) : magnitudes(i, w, exact);
    for (std::size_t n = 0; n < kNumStatistics; ++n) statistics_[n].data()[head * q_len_ + i] = numbers[n];
  }

  /// entropy, max, self, previous, first, distance of one row
  std::array<C, kNumStatistics> statistics(Index i, const C* w) const {
    C sum = 0, entropy = 0, largest = 0, distance = 0;
    for (Index j = 0; j < kv_len_; ++j) {
      sum += w[j];
      if (w[j] > 0) entropy -= w[j] * std::log(w[j]);
      largest = std::max(largest, w[j]);
      distance += w[j] * away(i, j);
    }
    if (std::isnan(sum)) return {sum, sum, sum, sum, sum, sum};
    return {entropy, largest, at(w, position(i)), at(w, position(i) - 1), at(w, 0), distance};
  }

  std::array<C, kNumStatistics> magnitudes(Index i, const C* a, const C* w) const {
    C entropy = 0, largest = 0, distance = 0;
    for (Index j = 0; j < kv_len_; ++j) {
      entropy += a[j] * (1 + (w[j] > 0 ? std::abs(std::log(w[j])) : C(0)));  // d(w ln w) = (1 + ln w) dw
      largest = std::max(largest, a[j]);
      distance += a[j] * away(i, j);
    }
    return {entropy, largest, at(a, position(i)), at(a, position(i) - 1), at(a, 0), distance};
  }

  Index position(Index i) const { return i + kv_len_ - q_len_; }
  C away(Index i, Index j) const { return static_cast<C>(std::abs(position(i) - j)); }
  C at(const C* w, Index j) const { return j >= 0 && j < kv_len_ ? w[j] : C(0); }

  const Capture& what_;
  const Tensor<C>* exact_;
  Index q_len_ = 0, kv_len_ = 0;
  Tensor<C> rows_, map_, columns_;
  std::array<Tensor<C>, kNumStatistics> statistics_;
};

/// max |naive - exact| over the elements that are not NaN.
template <class C, class Sum> double largest_error(const Tensor<C>& exact, const Tensor<Sum>& naive) {
  double largest = 0;
  for (Index n = 0; n < exact.count(); ++n) {
    const auto error = static_cast<double>(std::abs(static_cast<C>(naive.data()[n]) - exact.data()[n]));
    if (std::isfinite(error)) largest = std::max(largest, error);
  }
  return largest;
}

/// Expected captures, of the matrices [B, H, Tq, Tk]: made once for all instruction sets. The first `count`
/// numbers, sums and then statistics. `factor` is 2 or 3 (expect.h). A single weight has a weight's bound: naive's
/// error is its largest in the whole matrix.
template <class T> class ExpectedCapture {
 public:
  using Sum = Accumulator<T>;

  ExpectedCapture(const Tensor<Wider<T>>& exact, const Tensor<Sum>& naive, const Tensor<double>& a, const Capture& what,
      std::size_t count, double factor) {
    const Tensor<double> rounded = converted<double>(exact);
    const Captured<Wider<T>> truth(exact, what);
    const Captured<Sum> plain(naive, what);
    const Captured<double> magnitude(a, what, &rounded);
    const double error_of_weights = largest_error(exact, naive);
    for (std::size_t n = 0; n < count; ++n) {
      const std::string output = n < kNumSums ? kSumNames[n] : kStatisticNames[n - kNumSums];
      if (n == 0 && what.rows.empty()) continue;  // not asked for
      Expected<Sum> expected(truth.numbers()[n]->clone(), *plain.numbers()[n], *magnitude.numbers()[n], factor);
      if (output == "rows" || output == "max" || output == "self" || output == "previous" || output == "first") {
        const double more = factor * (error_of_weights - largest_error(expected.exact, *plain.numbers()[n]));
        for (double& bound : expected.bounds) bound += std::max(0.0, more);
      }
      numbers_.push_back({n, output, std::move(expected)});
    }
  }

  testing::AssertionResult holds(const CaptureResult& found, const std::string& name, Worst& worst) const {
    for (const Number& each : numbers_) {
      const Tensor<double>& got = *numbers_of(found)[each.index];
      if (got.sizes() != each.expected.exact.sizes()) {
        return testing::AssertionFailure()
               << each.output << ": sizes " << got.shape() << ", not " << each.expected.exact.shape();
      }
      if (auto ok = within(each.expected, converted<Sum>(got), each.output, name, worst); !ok) return ok;
    }
    return testing::AssertionSuccess();
  }

 private:
  struct Number {
    std::size_t index;
    std::string output;
    Expected<Sum> expected;
  };
  std::vector<Number> numbers_;
};

/// The largest of each row are those of the row itself, in its bits: falling, of equals the lower key first, and
/// nothing that is kept was left out. `all` was captured with every row; kept(b, h, i, j) as the case has it.
template <class Kept> void expect_largest(
    const CaptureResult& found, const CaptureResult& all, const Capture& what, Index num_heads, const Kept& kept) {
  const std::vector<Index> heads = heads_of(what, num_heads);
  if (found.top_weights.count() == 0) return;  // no queries: no rows either
  const View<const double, 4> top = found.top_weights, rows = all.rows;
  const View<const Index, 4> keys = found.top_keys;
  for_each_index({top.size(0), top.size(1), top.size(2)}, [&](Index b, Index n, Index i) {
    std::vector<Index> order;
    bool nan = false;
    for (Index j = 0; j < rows.size(3); ++j) {
      nan |= std::isnan(rows(b, n, i, j));
      if (kept(b, heads[static_cast<std::size_t>(n)], i, j)) order.push_back(j);
    }
    std::ranges::stable_sort(order, [&](Index x, Index y) { return rows(b, n, i, x) > rows(b, n, i, y); });
    for (Index k = 0; k < what.top_k; ++k) {
      if (nan) {
        ASSERT_TRUE(std::isnan(top(b, n, i, k)) && keys(b, n, i, k) == -1) << "row " << i;
        continue;
      }
      const Index key = k < std::ssize(order) ? order[static_cast<std::size_t>(k)] : -1;
      ASSERT_EQ(keys(b, n, i, k), key) << "row " << i << " rank " << k;
      ASSERT_EQ(top(b, n, i, k), key < 0 ? 0.0 : rows(b, n, i, key)) << "row " << i << " rank " << k;
    }
  });
}

}  // namespace qkv::test
