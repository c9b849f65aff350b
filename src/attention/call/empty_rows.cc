#include "attention/call/empty_rows.h"

#include <algorithm>
#include <limits>

#include "core/philox.h"

namespace qkv::inline v0 {
namespace {

template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

template <class T>
bool is_empty(T lse) {
  return lse == -std::numeric_limits<T>::infinity();
}

/// dropout(1/Tk) of weight (i, j).
template <class T>
class MeanWeight {
 public:
  using Sum = Accumulator<T>;
  MeanWeight(const Problem<T>& p, Index b, Index h, bool applied)
      : mean_(Sum{1} / static_cast<Sum>(p.kv_len)),
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
template <class T>
void mean_row(const MeanWeight<T>& weight, Index i, const T* v, const Problem<T>& p, T* row) {
  using Sum = Accumulator<T>;
  constexpr Index block = 64;
  for (Index d0 = 0; d0 < p.v_head_dim; d0 += block) {
    const Index width = std::min(block, p.v_head_dim - d0);
    Sum sums[block] = {};
    for (Index j = 0; j < p.kv_len; ++j) {
      const Sum w = weight(i, j);
      for (Index d = 0; d < width; ++d) sums[d] += w * static_cast<Sum>(v[j * p.v.stride(2) + d0 + d]);
    }
    for (Index d = 0; d < width; ++d) row[d0 + d] = static_cast<T>(sums[d]);
  }
}

}  // namespace

template <class T>
void fill_empty_out(const Problem<T>& p, Index b, Index h, Index q_begin, Index q_count, const Accumulator<T>* lse, T* out,
                    Index out_stride) {
  if (p.empty_row == EmptyRow::kZero || p.length(b) == 0) return;
  const MeanWeight<T> weight(p, b, h, true);
  const T* v = p.v.data() + b * p.v.stride(0) + h / p.group_size() * p.v.stride(1);
  const T* same_mean = nullptr;  // without dropout every empty row of a head is the same
  for (Index i = 0; i < q_count; ++i) {
    if (!is_empty(lse[i])) continue;
    T* row = out + i * out_stride;
    if (p.empty_row == EmptyRow::kNaN) {
      std::fill_n(row, p.v_head_dim, static_cast<T>(kNan<Accumulator<T>>));
    } else if (same_mean != nullptr) {
      std::copy_n(same_mean, p.v_head_dim, row);
    } else {
      mean_row(weight, q_begin + i, v, p, row);
      if (p.dropout_threshold == 0) same_mean = row;
    }
  }
}

template <class T>
void fill_empty_weights(const Problem<T>& p, Index b, Index h, Index q_begin, Index q_count, const Accumulator<T>* lse,
                        bool applied, Accumulator<T>* weights, Index row_stride) {
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<T> weight(p, b, h, applied);
  for (Index i = 0; i < q_count; ++i) {
    if (!is_empty(lse[i])) continue;
    Accumulator<T>* row = weights + i * row_stride;
    for (Index j = 0; j < p.kv_len; ++j) row[j] = p.empty_row == EmptyRow::kNaN ? kNan<Accumulator<T>> : weight(q_begin + i, j);
  }
}

template <class T>
void add_empty_dv(const Problem<T>& p, Index b, Index h, const Accumulator<T>* lse, Index lse_stride, const T* dout,
                  Index dout_stride, Index k_begin, Index k_count, Accumulator<T>* dv, Index dv_stride) {
  using Sum = Accumulator<T>;
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<T> weight(p, b, h, true);
  for (Index i = p.first_query; i < p.first_query + p.q_len; ++i) {
    if (!is_empty(lse[(i - p.first_query) * lse_stride])) continue;
    for (Index j = k_begin; j < k_begin + k_count; ++j) {
      Sum* row = dv + (j - k_begin) * dv_stride;
      if (p.empty_row == EmptyRow::kNaN) {
        std::fill_n(row, p.v_head_dim, kNan<Sum>);
        continue;
      }
      const Sum w = weight(i, j);
      if (w == 0) continue;
      for (Index d = 0; d < p.v_head_dim; ++d) row[d] += w * static_cast<Sum>(dout[(i - p.first_query) * dout_stride + d]);
    }
    if (p.empty_row == EmptyRow::kNaN) return;  // NaN stays NaN
  }
}

#define QKV_INSTANTIATE(T)                                                                                                 \
  template void fill_empty_out(const Problem<T>&, Index, Index, Index, Index, const Accumulator<T>*, T*, Index);           \
  template void fill_empty_weights(const Problem<T>&, Index, Index, Index, Index, const Accumulator<T>*, bool,             \
                                   Accumulator<T>*, Index);                                                                \
  template void add_empty_dv(const Problem<T>&, Index, Index, const Accumulator<T>*, Index, const T*, Index, Index, Index, \
                             Accumulator<T>*, Index);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
