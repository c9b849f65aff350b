#include "attention/empty_rows.h"

#include <algorithm>
#include <limits>

#include "core/philox.h"

namespace qkv {
inline namespace v0 {
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
  MeanWeight(const Problem<T>& p, Index b, Index h, bool applied)
      : mean_(T{1} / static_cast<T>(p.kv_len)),
        threshold_(applied ? p.dropout_threshold : 0),
        key_(philox_key(p.dropout.seed)),
        sequence_head_(p.sequence_head(b, h)),
        kept_(mean_ * static_cast<T>(dropout_scale(threshold_))) {}

  T operator()(Index i, Index j) const {
    if (threshold_ == 0) return mean_;
    return dropped(key_, i, j, sequence_head_, threshold_) ? T{0} : kept_;
  }

 private:
  T mean_;
  std::uint32_t threshold_;
  PhiloxKey key_;
  std::uint32_t sequence_head_;
  T kept_;
};

}  // namespace

template <class T>
void fill_empty_out(const Problem<T>& p, Index b, Index h, Index q_begin, Index q_count, const T* lse, T* out,
                    Index out_stride) {
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<T> weight(p, b, h, true);
  const T* v = p.v.data() + b * p.v.stride(0) + h / p.group_size() * p.v.stride(1);
  const T* same_mean = nullptr;  // without dropout every empty row of a head is the same
  for (Index i = 0; i < q_count; ++i) {
    if (!is_empty(lse[i])) continue;
    T* row = out + (q_begin + i) * out_stride;
    if (p.empty_row == EmptyRow::kNaN) {
      std::fill_n(row, p.v_head_dim, kNan<T>);
    } else if (same_mean != nullptr) {
      std::copy_n(same_mean, p.v_head_dim, row);
    } else {
      std::fill_n(row, p.v_head_dim, T{0});
      for (Index j = 0; j < p.kv_len; ++j) {
        const T w = weight(q_begin + i, j);
        for (Index d = 0; d < p.v_head_dim; ++d) row[d] += w * v[j * p.v.stride(2) + d];
      }
      if (p.dropout_threshold == 0) same_mean = row;
    }
  }
}

template <class T>
void fill_empty_weights(const Problem<T>& p, Index b, Index h, Index q_begin, Index q_count, const T* lse, bool applied,
                        T* weights, Index row_stride) {
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<T> weight(p, b, h, applied);
  for (Index i = 0; i < q_count; ++i) {
    if (!is_empty(lse[i])) continue;
    T* row = weights + (q_begin + i) * row_stride;
    for (Index j = 0; j < p.kv_len; ++j) row[j] = p.empty_row == EmptyRow::kNaN ? kNan<T> : weight(q_begin + i, j);
  }
}

template <class T>
void add_empty_dv(const Problem<T>& p, Index b, Index h, const T* lse, Index lse_stride, const T* dout, Index dout_stride,
                  Index k_begin, Index k_count, T* dv, Index dv_stride) {
  if (p.empty_row == EmptyRow::kZero || p.kv_len == 0) return;
  const MeanWeight<T> weight(p, b, h, true);
  for (Index i = 0; i < p.q_len; ++i) {
    if (!is_empty(lse[i * lse_stride])) continue;
    for (Index j = k_begin; j < k_begin + k_count; ++j) {
      T* row = dv + j * dv_stride;
      if (p.empty_row == EmptyRow::kNaN) {
        std::fill_n(row, p.v_head_dim, kNan<T>);
        continue;
      }
      const T w = weight(i, j);
      if (w == 0) continue;
      for (Index d = 0; d < p.v_head_dim; ++d) row[d] += w * dout[i * dout_stride + d];
    }
    if (p.empty_row == EmptyRow::kNaN) return;  // NaN stays NaN
  }
}

#define QKV_INSTANTIATE(T)                                                                                    \
  template void fill_empty_out(const Problem<T>&, Index, Index, Index, Index, const T*, T*, Index);           \
  template void fill_empty_weights(const Problem<T>&, Index, Index, Index, Index, const T*, bool, T*, Index); \
  template void add_empty_dv(const Problem<T>&, Index, Index, const T*, Index, const T*, Index, Index, Index, T*, Index);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
#undef QKV_INSTANTIATE

}  // namespace v0
}  // namespace qkv
