#include "attention/capture/capture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <span>

#include "attention/call/empty_rows.h"
#include "attention/call/memory_checks.h"
#include "attention/call/row_lse.h"
#include "core/check.h"
#include "core/maths.h"
#include "core/threads/region.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Sum> bool is_empty(Sum lse) { return lse == -std::numeric_limits<Sum>::infinity(); }

/// A filled tensor of these sizes; reuses the one that is there if it fits.
template <class E, std::size_t Rank>
void make(Tensor<E>& tensor, bool wanted, const std::array<Index, Rank>& sizes, E fill = E{}) {
  if (!wanted) {
    tensor = {};
    return;
  }
  if (!std::equal(sizes.begin(), sizes.end(), tensor.sizes().begin(), tensor.sizes().end()))
    tensor = Tensor<E>(std::vector<Index>(sizes.begin(), sizes.end()));
  std::ranges::fill(tensor.span(), fill);
}

void check_distinct(const char* function, const char* name, std::span<const Index> indices, Index count) {
  for (std::size_t n = 0; n < indices.size(); ++n) {
    check<OptionError>(indices[n] >= 0 && indices[n] < count, function, "capture.", name,
        " must be at least 0 and below ", count, ": got ", indices[n]);
    const auto before = indices.first(n);
    check<OptionError>(std::ranges::find(before, indices[n]) == before.end(), function, "capture.", name,
        " must name each once: got ", indices[n], " twice");
  }
}

void check_capture(const char* function, const Problem& p, const Capture& what) {
  check_distinct(function, "heads", what.heads, p.num_heads);
  check_distinct(function, "rows", what.rows, p.q_len);
  check<OptionError>(what.top_k >= 0, function, "capture.top_k must not be negative: got ", what.top_k);
  check<OptionError>(what.map_rows >= 0 && what.map_columns >= 0 && (what.map_rows > 0) == (what.map_columns > 0),
      function, "capture.map_rows and map_columns must both be positive, or both 0: got ", what.map_rows, " x ",
      what.map_columns);
  check<OptionError>(what.offsets.empty() || static_cast<Index>(what.offsets.size()) == p.batch, function,
      "capture.offsets must be one for each of ", p.batch, " sequences: got ", what.offsets.size());
  for (const Index offset : what.offsets) {
    constexpr Index most = Index{1} << 60;
    check<OptionError>(offset > -most && offset < most, function, "capture.offsets must be below 2^60: got ", offset);
  }
  check<UnsupportedError>(what.of == CaptureOf::kGradient || !what.positive, function,
      "capture.positive needs weights times gradient, in backward: got a capture of weights");
  check<OptionError>(what.of != CaptureOf::kGradient || !what.statistics, function,
      "capture.statistics needs weights, in forward: got a capture of weights times gradient");
}

/// The largest weights of a row, if no kernel tracks them.
template <class Number> void keep_largest(std::span<const Number> weights, Index top_k, double* values, Index* keys) {
  std::fill_n(keys, top_k, Index{-1});
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const auto weight = static_cast<double>(weights[j]);
    if (keys[top_k - 1] < 0 || values[top_k - 1] < weight) {
      insert_largest(values, keys, top_k, weight, static_cast<Index>(j));
    }
  }
}

}  // namespace

/// A worker's memory.
template <class Sum> struct CaptureJob<Sum>::Worker {
  RowSums<Sum> sums{};                       // statistics
  Sum *shift = nullptr, *inverse = nullptr;  // the sweep: [query_tile]
  double *columns = nullptr, *map = nullptr;
  double** rows = nullptr;
  Index* map_row = nullptr;
  Sum* empty_row = nullptr;  // [Tk]
  std::byte *statistics_scratch = nullptr, *sweep_scratch = nullptr;
  std::size_t bytes;

  Worker(const CaptureJob& job, std::byte* base) {
    const Problem& p = job.p_;
    const Capture& what = *job.what_;
    Carver carver(base);
    const Index queries = p.query_tile;
    shift = carver.array<Sum>(queries);
    inverse = carver.array<Sum>(queries);
    if (what.statistics) {
      const Index lanes = (queries + p.strip - 1) / p.strip * p.strip;  // whole strips are written
      for (Sum** each : {&sums.shift, &sums.inverse, &sums.sums, &sums.exponents, &sums.distances, &sums.largest,
               &sums.self, &sums.previous, &sums.first}) {
        *each = carver.array<Sum>(lanes);
      }
      sums.largest_key = carver.array<Index>(lanes);
      statistics_scratch = carver.array<std::byte>(static_cast<Index>(job.kernels_.statistics_bytes()));
    }
    if (job.sweeps()) {
      // Backward computes sums of rows again there (call/row_lse.h).
      sweep_scratch = carver.array<std::byte>(static_cast<Index>(std::max(
          job.kernels_.sweep_bytes(p.head_dim, p.v_head_dim, queries, p.copies()), p.forward_scratch_bytes())));
      if (what.column_mass) columns = carver.array<double>(p.kv_len);
      if (what.map_rows > 0) {
        map = carver.array<double>(job.map_rows_of_tile() * what.map_columns);
        map_row = carver.array<Index>(queries);
      }
      if (!what.rows.empty()) rows = carver.array<double*>(queries);
      if (p.rows_can_be_empty()) empty_row = carver.array<Sum>(p.kv_len);
    }
    bytes = carver.used();
  }
};

CaptureShape::CaptureShape(const char* function, const Problem& p, const CaptureRequest& request, bool backward)
    : p_(p) {
  if (written_results(request, backward) == nullptr) return;
  check<UnsupportedError>(
      !p.is_part(), function, "AttentionOptions::part is not supported with a capture: pass all rows and heads");
  check_capture(function, p, *request.what);
  what_ = request.what;
  result_ = request.result;
  const Capture& what = *what_;
  const Index b = p_.batch, h = slots(), q_len = p_.q_len, kv_len = p_.kv_len;
  make(result_->rows, !what.rows.empty(), std::array{b, h, static_cast<Index>(what.rows.size()), kv_len});
  make(result_->top_weights, what.top_k > 0, std::array{b, h, q_len, what.top_k});
  make(result_->top_keys, what.top_k > 0, std::array{b, h, q_len, what.top_k}, Index{-1});
  make(result_->map, what.map_rows > 0, std::array{b, h, what.map_rows, what.map_columns});
  make(result_->column_mass, what.column_mass, std::array{b, h, kv_len});
  RowStatistics& s = result_->statistics;
  for (Tensor<double>* each : {&s.entropy, &s.max_weight, &s.self, &s.previous, &s.first, &s.distance, &s.sink}) {
    make(*each, what.statistics, std::array{b, h, q_len});
  }
  make(s.max_key, what.statistics, std::array{b, h, q_len}, Index{-1});
}

template <class Sum> std::size_t CaptureJob<Sum>::worker_bytes() const {
  return wanted() ? Worker(*this, nullptr).bytes : 0;
}

template <class Sum> std::size_t CaptureJob<Sum>::shared_bytes() const {
  return wanted() ? line_bytes<Turn>(p_.batch * slots()) : 0;
}

template <class Sum> void CaptureJob<Sum>::begin(std::byte* shared) {
  if (!wanted()) return;
  turns_ = reinterpret_cast<Turn*>(shared);
  for (Index n = 0; n < p_.batch * slots(); ++n) new (turns_ + n) Turn(0);
}

template <class Sum>
void CaptureJob<Sum>::forward(ForwardTile<Sum> tile, Index b, Index h, void* kernel_scratch, std::byte* own) const {
  const Index slot = slot_of(h);
  Worker w(*this, own);
  tile.row_max2 = w.shift;
  tile.row_sum = w.inverse;
  if (what_->statistics) {
    w.sums.offset = offset(b);
    run_forward(p_.kernels<Sum>(), tile, kernel_scratch, {&kernels_, &w.sums, w.statistics_scratch});
    write_statistics(w.sums, tile, b, slot);
  } else {
    run_forward(p_.kernels<Sum>(), tile, kernel_scratch);
  }
  if (!sweeps()) return;
  for (Index i = 0; i < tile.q_count; ++i) w.inverse[i] = w.inverse[i] == 0 ? Sum{0} : Sum{1} / w.inverse[i];
  sweep(w, {b, slot, h, tile.q_begin, tile.q_count}, nullptr, tile.lse);
}

template <class Sum> void CaptureJob<Sum>::run_backward(const AnyView& lse, const AnyView& dout, Context& context) {
  const CaptureGradient gradient{lse, dout};
  if (!wanted() || !sweeps()) return;
  const ScratchLease shared = borrow_scratch(context, shared_bytes());
  begin(shared.data());
  const Index items = p_.batch * slots() * p_.query_tiles();
  const double flops = static_cast<double>(p_.batch * slots() * p_.q_len) * static_cast<double>(p_.kv_len) * 2.0 *
                       static_cast<double>(p_.head_dim + p_.v_head_dim);
  run_items(
      context, {items, flops, worker_bytes()}, [&](Index item, std::byte* own) { backward(gradient, item, own); });
}

/// Items count head by head, in each the last tile first, as in forward.
template <class Sum> void CaptureJob<Sum>::backward(const CaptureGradient& gradient, Index item, std::byte* own) const {
  const Index tiles = p_.query_tiles(), head = item / tiles, b = head / slots(), slot = head % slots();
  const Positions queries = p_.tile(tiles - 1 - item % tiles);
  const Worker w(*this, own);
  const Rows r{b, slot, head_at(slot), queries.begin, queries.end - queries.begin};
  // w = exp2(s2 - high) * exp2(-low); an empty row's high is +inf and its weights are 0.
  split_lse(p_, gradient.lse, {}, r.b, r.h, r.q_begin, r.q_count, w.shift, w.inverse, w.sweep_scratch);
  for (Index i = 0; i < r.q_count; ++i)
    w.inverse[i] = static_cast<Sum>(maths::exp2(static_cast<double>(-w.inverse[i])));
  sweep(w, r, &gradient, nullptr);
}

template <class Sum>
void CaptureJob<Sum>::sweep(const Worker& w, const Rows& r, const CaptureGradient* gradient, const Sum* lse) const {
  const Index first_row = (r.b * slots() + r.slot) * p_.q_len + r.q_begin;
  CaptureSweep<Sum> t{};
  t.tile = p_.forward_tile<Sum>(r.b, r.h, {r.q_begin, r.q_begin + r.q_count});
  t.shift = w.shift;
  t.inverse = w.inverse;
  t.applied = what_->of == CaptureOf::kApplied;
  t.positive = what_->positive;
  if (gradient != nullptr) t.dout = rows_at(gradient->dout, r.b, r.h, r.q_begin);
  if (what_->top_k > 0) {
    t.top_values = result_->top_weights.data() + first_row * what_->top_k;
    t.top_keys = result_->top_keys.data() + first_row * what_->top_k;
    t.top_k = what_->top_k;
  }
  if (w.columns != nullptr) std::fill_n(t.columns = w.columns, p_.kv_len, 0.0);
  if (w.map != nullptr) {
    std::fill_n(t.map = w.map, map_rows_of_tile() * what_->map_columns, 0.0);
    const Index first = r.q_begin * what_->map_rows / p_.q_len;
    for (Index i = 0; i < r.q_count; ++i) w.map_row[i] = (r.q_begin + i) * what_->map_rows / p_.q_len - first;
    t.map_row = w.map_row;
    t.map_columns = what_->map_columns;
  }
  if (w.rows != nullptr) {
    std::fill_n(w.rows, r.q_count, nullptr);
    const Index count = static_cast<Index>(what_->rows.size());
    for (Index n = 0; n < count; ++n) {
      const Index i = what_->rows[static_cast<std::size_t>(n)] - r.q_begin;
      if (i < 0 || i >= r.q_count) continue;
      w.rows[i] = result_->rows.data() + ((r.b * slots() + r.slot) * count + n) * p_.kv_len;
    }
    t.rows = w.rows;
  }
  kernels_.sweep(t, w.sweep_scratch);
  if (lse != nullptr) complete_rows(w, t, r, lse);
  add_to_results(w, r);
}

/// Corrects what the kernel does not know: empty rows that hold values, and NaN rows, where no weight is the largest.
template <class Sum>
void CaptureJob<Sum>::complete_rows(const Worker& w, const CaptureSweep<Sum>& t, const Rows& r, const Sum* lse) const {
  const Index kv_len = p_.length(r.b);
  for (Index i = 0; i < r.q_count; ++i) {
    double* values = t.top_values + i * t.top_k;
    if (std::isnan(lse[i])) std::fill_n(values, t.top_k, kNan);
    if (!is_empty(lse[i]) || p_.empty_row == EmptyRow::kZero || kv_len == 0) continue;
    const std::span<Sum> row(w.empty_row, static_cast<std::size_t>(kv_len));
    fill_empty_weights(p_, r.b, r.h, r.q_begin + i, 1, lse + i, t.applied, row.data(), 0);
    if (t.rows != nullptr && t.rows[i] != nullptr) std::ranges::copy(row, t.rows[i]);
    if (std::isnan(row[0])) {
      std::fill_n(values, t.top_k, kNan);
    } else if (t.top_k > 0) {
      keep_largest<Sum>(row, t.top_k, values, t.top_keys + i * t.top_k);
    }
    for (Index j = 0; j < kv_len; ++j) {
      const auto weight = static_cast<double>(row[static_cast<std::size_t>(j)]);
      if (t.columns != nullptr) t.columns[j] += weight;
      if (t.map != nullptr) t.map[t.map_row[i] * t.map_columns + j * t.map_columns / kv_len] += weight;
    }
  }
}

/// Adds the sums of this tile, after those of the tiles before it in the order of items.
template <class Sum> void CaptureJob<Sum>::add_to_results(const Worker& w, const Rows& r) const {
  if (w.columns == nullptr && w.map == nullptr) return;
  const Index head = r.b * slots() + r.slot, number = p_.query_tiles() - 1 - r.q_begin / p_.query_tile;
  wait_for_turn(turns_[head], number);
  if (w.columns != nullptr) {
    double* sums = result_->column_mass.data() + head * p_.kv_len;
    for (Index j = 0; j < p_.kv_len; ++j) sums[j] += w.columns[j];
  }
  if (w.map != nullptr) {
    const Index first = r.q_begin * what_->map_rows / p_.q_len, columns = what_->map_columns;
    double* sums = result_->map.data() + (head * what_->map_rows + first) * columns;
    const Index cells = (w.map_row[r.q_count - 1] + 1) * columns;
    for (Index n = 0; n < cells; ++n) sums[n] += w.map[n];
  }
  pass_turn(turns_[head], number);
}

template class CaptureJob<float>;
template class CaptureJob<double>;

}  // namespace qkv::inline v0
