#include "attention/call/empty_rows.h"

#include <algorithm>
#include <limits>

#include "core/philox.h"

namespace qkv::inline v0 {
namespace {

template <class Sum> bool is_empty(Sum lse) { return lse == -std::numeric_limits<Sum>::infinity(); }

/// dropout(1/Tk) of weight (i, j).
template <class Sum> class MeanWeight {
 public:
  MeanWeight(const Problem& p, Index b, Index h, bool applied)
      : mean_(Sum{1} / static_cast<Sum>(p.length(b))),
        threshold_(applied ? p.dropout_threshold : 0),
        key_(philox_key(p.dropout.seed)),
        sequence_head_(p.sequence_head(b, h)),
        kept_(mean_ * static_cast<Sum>(dropout_scale(threshold_))) {}

  Sum operator()(Index i, Index j) const {
    if (threshold_ == 0) return mean_;
    return dropped(key_, i, j, sequence_head_, threshold_) ? Sum{0} : kept_;
  }

 private:
  Sum mean_;
  std::uint32_t threshold_;
  PhiloxKey key_;
  std::uint32_t sequence_head_;
  Sum kept_;
};

/// row = sum_j w(i, j) v_j, a few columns at a time so that the sums stay in their own type.
template <class E, class Sum>
void mean_row(const MeanWeight<Sum>& weight, Index i, const E* v, Index v_stride, const Problem& p, E* row) {
  constexpr Index block = 64;
  for (Index d0 = 0; d0 < p.v_head_dim; d0 += block) {
    const Index width = std::min(block, p.v_head_dim - d0);
    Sum sums[block] = {};
    for (Index j = 0; j < p.kv_len; ++j) {
      const Sum w = weight(i, j);
      for (Index d = 0; d < width; ++d) sums[d] += w * static_cast<Sum>(v[j * v_stride + d0 + d]);
    }
    for (Index d = 0; d < width; ++d) row[d0 + d] = static_cast<E>(sums[d]);
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
  with_elements<Sum>(dout.type, [&]<class E>(E) {
    for (Index i = 0; i < p.q_len; ++i) {
      if (!is_empty(*lse.as<const Sum>(b, h, i))) continue;
      const E* const from = dout.as<const E>(b, h, i);
      for (Index j = k_begin; j < k_begin + k_count; ++j) {
        Sum* row = dv + (j - k_begin) * dv_stride;
        if (p.empty_row == EmptyRow::kNaN) {
          std::fill_n(row, p.v_head_dim, std::numeric_limits<Sum>::quiet_NaN());
          continue;
        }
        const Sum w = weight(p.first_query + i, j);
        if (w == 0) continue;
        for (Index d = 0; d < p.v_head_dim; ++d) row[d] += w * static_cast<Sum>(from[d]);
      }
      if (p.empty_row == EmptyRow::kNaN) return;  // NaN stays NaN
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
