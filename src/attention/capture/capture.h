// A capture within one call: checked, its results made, and what a work item does for it.
#pragma once

#include "attention/call/problem.h"
#include "core/threads/scratch.h"
#include "core/threads/turns.h"
#include "dispatch/kernels.h"
#include "kernels/capture/params.h"

namespace qkv::inline v0 {

/// What backward needs beside a Problem to know the gradient of a weight.
template <class T>
struct CaptureGradient {
  View<const Accumulator<T>, 3> lse;
  View<const T, 4> dout;
};

template <class T>
class CaptureJob {
 public:
  using Sum = Accumulator<T>;

  /// Checks everything, then makes or clears the results. Without a request, or with one of the other direction, does nothing.
  CaptureJob(const char* function, const Problem<T>& p, const CaptureRequest& request, const Context& context, bool backward);

  bool wanted() const { return result_ != nullptr; }
  CaptureJob* if_wanted() { return wanted() ? this : nullptr; }
  /// Scratch per worker, and shared by all items.
  std::size_t worker_bytes() const;
  std::size_t shared_bytes() const;
  /// Call before the region; `shared` has shared_bytes().
  void begin(std::byte* shared);

  /// The slot of head h among the results; -1: it is not captured.
  Index slot_of(Index h) const;
  /// Forward of one tile of a captured head, bit-identical to run_forward. Tiles of a head come in the order of
  /// items: the last first. `own`: scratch of worker_bytes().
  void forward(ForwardTile<Sum> tile, Index b, Index h, void* kernel_scratch, std::byte* own) const;
  /// Captures weights times gradient as a whole, in a region of its own.
  void run_backward(const CaptureGradient<T>& gradient, Context& context);

 private:
  /// Queries per item if every entry is written out before it is counted (capture/entries.cc): 16 rows of Tk in memory.
  static constexpr Index kEntryRows = 16;

  struct Worker;
  /// Queries [q_begin, q_begin + q_count) of head h of sequence b; `slot` among the results.
  struct Rows {
    Index b, slot, h, q_begin, q_count;
  };

  Index slots() const;    // heads that are captured
  Index results() const;  // how many results these give: one per head, or one mean
  Index head_at(Index slot) const;
  /// Whether single entries are changed before they are summed: then no kernel can sum them.
  bool entrywise() const { return what_->positive || what_->mean_of_heads; }
  /// The queries per item, and the items per head.
  Index rows_at_once() const;
  Index row_tiles() const { return (p_.q_len + rows_at_once() - 1) / rows_at_once(); }
  Index offset(Index b) const;
  bool sweeps() const;
  Index map_rows_of_tile() const;
  void make_results() const;
  void backward(const CaptureGradient<T>& gradient, Index item, std::byte* own) const;
  void write_statistics(const RowSums<Sum>& sums, const ForwardTile<Sum>& tile, Index b, Index slot) const;
  void split_weights(const Worker& w, const Rows& r, const CaptureGradient<T>& gradient) const;
  CaptureSweep<Sum> sweep_of(const Worker& w, const Rows& r, const CaptureGradient<T>* gradient) const;
  void map_rows_of(const Worker& w, const Rows& r) const;
  void sweep_entries(const Worker& w, const Rows& r, const CaptureGradient<T>& gradient) const;
  void count_entries(const Worker& w, const Rows& r, const double* entries) const;
  void sweep(const Worker& w, const Rows& r, const CaptureGradient<T>* gradient, const Sum* lse) const;
  void complete_rows(const Worker& w, const CaptureSweep<Sum>& t, const Rows& r, const Sum* lse) const;
  void add_to_results(const Worker& w, const Rows& r) const;

  const Problem<T>& p_;
  const Capture* what_ = nullptr;
  CaptureResult* result_ = nullptr;
  const CaptureKernels<Sum>* kernels_ = nullptr;
  Turn* turns_ = nullptr;  // [B, slots]: whose sums are added next
};

}  // namespace qkv::inline v0
