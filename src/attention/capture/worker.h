// The memory of a worker that captures, and a row's largest weights if no kernel finds them.
#pragma once

#include <algorithm>
#include <span>

#include "attention/capture/capture.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

/// The largest weights of a row, if no kernel tracks them. `zeros`: whether a 0 counts.
template <class Number>
void keep_largest(std::span<const Number> weights, bool zeros, Index top_k, double* values, Index* keys) {
  std::fill_n(keys, top_k, Index{-1});
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const auto weight = static_cast<double>(weights[j]);
    if (weight == 0 && !zeros) continue;
    if (keys[top_k - 1] < 0 || values[top_k - 1] < weight)
      insert_largest(values, keys, top_k, weight, static_cast<Index>(j));
  }
}

/// A worker's memory.
template <class Sum> struct CaptureJob<Sum>::Worker {
  RowSums<Sum> sums{};                       // statistics
  Sum *shift = nullptr, *inverse = nullptr;  // the sweep: [query_tile]
  double *columns = nullptr, *map = nullptr;
  double** rows = nullptr;
  double *entries = nullptr, *mean = nullptr;  // capture/entries.cc: [rows_at_once()][Tk]
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
      for (Sum** each : {&sums.shift, &sums.inverse, &sums.sums, &sums.exponents, &sums.distances, &sums.largest,
               &sums.self, &sums.previous, &sums.first}) {
        *each = carver.array<Sum>(queries);
      }
      sums.largest_key = carver.array<Index>(queries);
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
      if (!what.rows.empty() || job.entrywise()) rows = carver.array<double*>(queries);
      if (job.entrywise()) entries = carver.array<double>(job.rows_at_once() * p.kv_len);
      if (what.mean_of_heads) mean = carver.array<double>(job.rows_at_once() * p.kv_len);
      if (p.rows_can_be_empty()) empty_row = carver.array<Sum>(p.kv_len);
    }
    bytes = carver.used();
  }
};

}  // namespace qkv::inline v0
