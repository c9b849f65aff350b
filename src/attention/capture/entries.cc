// Relevance maps: weights times gradient of which only what is above 0 counts, and their mean over heads (Chefer, Gur &
// Wolf 2021, arXiv:2103.15679, eq. 5: E_h((dA . A)^+)). Both change single entries before they are summed, which sums
// made by the kernel cannot follow: the kernel writes whole rows of a few queries, and all results are made from those.
#include "attention/capture/worker.h"

namespace qkv::inline v0 {

template <class Sum>
void CaptureJob<Sum>::sweep_entries(const Worker& w, const Rows& r, const CaptureGradient& gradient) const {
  const Index kv_len = p_.kv_len, entries = r.q_count * kv_len;
  for (Index i = 0; i < r.q_count; ++i) w.rows[i] = w.entries + i * kv_len;
  const auto write_head = [&](Index h) {
    Rows of_head = r;
    of_head.h = h;
    split_weights(w, of_head, gradient);
    std::fill_n(w.entries, entries, 0.0);  // the kernel sets live entries only
    CaptureSweep<Sum> t = sweep_of(w, of_head, &gradient);
    t.rows = w.rows;
    kernels_.sweep(t, w.sweep_scratch);
    if (!what_->positive) return;
    for (Index n = 0; n < entries; ++n) w.entries[n] = w.entries[n] < 0 ? 0 : w.entries[n];  // NaN stays
  };
  if (!what_->mean_of_heads) {
    write_head(r.h);
    count_entries(w, r, w.entries);
    return;
  }
  std::fill_n(w.mean, entries, 0.0);
  for (Index slot = 0; slot < slots(); ++slot) {
    write_head(head_at(slot));
    for (Index n = 0; n < entries; ++n) w.mean[n] += w.entries[n];
  }
  const auto heads = static_cast<double>(slots());
  for (Index n = 0; n < entries; ++n) w.mean[n] /= heads;
  count_entries(w, r, w.mean);
}

/// Makes every result that is requested from the entries [q_count][Tk].
template <class Sum> void CaptureJob<Sum>::count_entries(const Worker& w, const Rows& r, const double* entries) const {
  const Index kv_len = p_.kv_len, result = r.b * results() + r.slot, columns = what_->map_columns;
  if (w.columns != nullptr) std::fill_n(w.columns, kv_len, 0.0);
  if (w.map != nullptr) {
    std::fill_n(w.map, map_rows_of_tile() * columns, 0.0);
    map_rows_of(w, r);
  }
  for (Index i = 0; i < r.q_count; ++i) {
    const double* row = entries + i * kv_len;
    const Index query = r.q_begin + i;
    const auto wanted = std::ranges::find(what_->rows, query);
    if (wanted != what_->rows.end()) {
      const Index slot = result * std::ssize(what_->rows) + (wanted - what_->rows.begin());
      std::copy_n(row, kv_len, result_->rows.data() + slot * kv_len);
    }
    if (what_->top_k > 0) {
      const Index first = (result * p_.q_len + query) * what_->top_k;
      keep_largest<double>({row, static_cast<std::size_t>(kv_len)}, false, what_->top_k,
          result_->top_weights.data() + first, result_->top_keys.data() + first);
    }
    for (Index j = 0; w.columns != nullptr && j < kv_len; ++j) w.columns[j] += row[j];
    for (Index j = 0; w.map != nullptr && j < kv_len; ++j)
      w.map[w.map_row[i] * columns + j * columns / kv_len] += row[j];
  }
  add_to_results(w, r);
}

template void CaptureJob<float>::sweep_entries(const Worker&, const Rows&, const CaptureGradient&) const;
template void CaptureJob<double>::sweep_entries(const Worker&, const Rows&, const CaptureGradient&) const;

}  // namespace qkv::inline v0
