#include "attention/call/empty_rows.h"

#include <algorithm>
#include <limits>

#include "core/philox.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kColumns = 64;  // summed at a time

template <class Sum> bool is_empty(Sum lse) { return lse == -std::numeric_limits<Sum>::infinity(); }

/// sums[d] = sum_n times(n) row(n)[d]; row(n) is null where it is not read. In double and in two levels, so that of
/// 10^6 rows of ones it is 10^6.
template <class Sum, class Row, class Times>
void sum_rows(Index count, Index width, double* sums, const Row& row, const Times& times) {
  constexpr Index run = 256;
  std::fill_n(sums, width, 0.0);
  for (Index first = 0; first < count; first += run) {
    double some[kColumns] = {};
    for (Index n = first; n < std::min(first + run, count); ++n) {
      const auto* from = row(n);
      if (from == nullptr) continue;
      const double factor = times(n);
      for (Index d = 0; d < width; ++d) some[d] += factor * static_cast<double>(static_cast<Sum>(from[d]));
    }
    for (Index d = 0; d < width; ++d) sums[d] += some[d];
  }
}

/// dropout(1/Tk) of weight (i, j).
template <class Sum> class MeanWeight {
 public:
  MeanWeight(const Problem& p, Index b, Index h, bool applied)
      : mean_(Sum{1} / static_cast<Sum>(p.length(b))),
        threshold_(applied ? p.dropout_threshold : 0),
        key_(philox_key(p.dropout.seed)),
        sequence_head_(p.sequence_head(b, h)),
        kept_(mean_ * static_cast<Sum>(dropout_scale(threshold_))),
        factor_((threshold_ == 0 ? 1 : dropout_scale(threshold_)) / static_cast<double>(p.length(b))) {}

  bool keeps(Index i, Index j) const { return threshold_ == 0 || !dropped(key_, i, j, sequence_head_, threshold_); }
  /// The weight of a pair that is kept.
  double factor() const { return factor_; }
  bool has_dropout() const { return threshold_ != 0; }
  Sum operator()(Index i, Index j) const {
    if (threshold_ == 0) return mean_;
    return keeps(i, j) ? kept_ : Sum{0};
  }

 private:
  Sum mean_;
  std::uint32_t threshold_;
  PhiloxKey key_;
  std::uint32_t sequence_head_;
  Sum kept_;
  double factor_;
};

/// row = sum_j w(i, j) v_j.
template <class E, class Sum>
void mean_row(const MeanWeight<Sum>& weight, Index i, const E* v, Index v_stride, const Problem& p, E* row) {
  for (Index d0 = 0; d0 < p.v_head_dim; d0 += kColumns) {
    const Index width = std::min(kColumns, p.v_head_dim - d0);
    double sums[kColumns];
    sum_rows<Sum>(
        p.kv_len, width, sums, [&](Index j) { return v + j * v_stride + d0; },
        [&](Index j) { return weight.keeps(i, j) ? 1.0 : 0.0; });
    for (Index d = 0; d < width; ++d) row[d0 + d] = static_cast<E>(static_cast<Sum>(sums[d] * weight.factor()));
  }
}

}  // namespace

template <class Sum> void fill_empty_out(const Problem& p, const AnyView& v, Index b, Index h, Index q_begin,
    Index q_count, const Sum* lse, const Rows& out) {
  if (p.empty_row == EmptyRow::kZero || p.length(b) == 0) return;
  const MeanWeight<Sum> weight(p, b, h, true);
  with_elements<Sum>(out.type, [&]<class E>(E) {
    const E* same_mean = nullptr;  // without dropout every empty row of a head is the same
    for (Index i = 0; i < q_count; ++i) {
      if (!is_empty(lse[i])) continue;
      E* const row = reinterpret_cast<E*>(out.data) + i * out.stride;
      if (p.empty_row == EmptyRow::kNaN) {
        std::fill_n(row, p.v_head_dim, static_cast<E>(std::numeric_limits<Sum>::quiet_NaN()));
      } else if (same_mean != nullptr) {
        std::copy_n(same_mean, p.v_head_dim, row);
      } else {
        mean_row(weight, q_begin + i, v.as<const E>(b, h / p.group_size()), v.stride(2), p, row);
        if (p.dropout_threshold == 0) same_mean = row;
      }
    }
  });
}

template <class Sum> void fill_empty_weights(const Problem& p, Index b, Index h, Index q_begin, Index q_count,
    const Sum* lse, bool applied, Sum* weights, Index row_stride) {
  if (p.empty_row == EmptyRow::kZero || p.length(b) == 0) return;
  const MeanWeight<Sum> weight(p, b, h, applied);
  for (Index i = 0; i < q_count; ++i) {
    if (!is_empty(lse[i])) continue;
    Sum* row = weights + i * row_stride;
    for (Index j = 0; j < p.length(b); ++j) {
      row[j] = p.empty_row == EmptyRow::kNaN ? std::numeric_limits<Sum>::quiet_NaN() : weight(q_begin + i, j);
    }
  }
}

template <class Sum> void add_empty_dv(const Problem& p, Index b, Index h, const AnyView& lse, const AnyView& dout,
    Index k_begin, Index k_count, Sum* dv, Index dv_stride) {
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<Sum> weight(p, b, h, true);
  if (p.empty_row == EmptyRow::kNaN) {
    bool any = false;
    for (Index i = 0; i < p.q_len && !any; ++i) any = is_empty(*lse.as<const Sum>(b, h, i));
    for (Index j = 0; any && j < k_count; ++j) {
      std::fill_n(dv + j * dv_stride, p.v_head_dim, std::numeric_limits<Sum>::quiet_NaN());
    }
    return;
  }
  with_elements<Sum>(dout.type, [&]<class E>(E) {
    for (Index d0 = 0; d0 < p.v_head_dim; d0 += kColumns) {
      const Index width = std::min(kColumns, p.v_head_dim - d0);
      double sums[kColumns];
      for (Index j = 0; j < k_count; ++j) {
        if (j == 0 || weight.has_dropout()) {  // without dropout all keys get the same
          const auto row = [&](Index i) -> const E* {
            if (!is_empty(*lse.as<const Sum>(b, h, i)) || !weight.keeps(p.first_query + i, k_begin + j)) return nullptr;
            return dout.as<const E>(b, h, i) + d0;
          };
          sum_rows<Sum>(p.q_len, width, sums, row, [](Index) { return 1.0; });
        }
        for (Index d = 0; d < width; ++d) dv[j * dv_stride + d0 + d] += static_cast<Sum>(sums[d] * weight.factor());
      }
    }
  });
}

#define QKV_INSTANTIATE(Sum)                                                                                         \
  template void fill_empty_out(const Problem&, const AnyView&, Index, Index, Index, Index, const Sum*, const Rows&); \
  template void fill_empty_weights(const Problem&, Index, Index, Index, Index, const Sum*, bool, Sum*, Index);       \
  template void add_empty_dv(const Problem&, Index, Index, const AnyView&, const AnyView&, Index, Index, Sum*, Index);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
