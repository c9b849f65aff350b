// A capture within one call: checked, its results made, and what a work item does for it. Not: the loops over keys
// (kernels/watch.h, sweep.h).
#pragma once

#include "attention/problem.h"
#include "attention/turns.h"
#include "core/scratch.h"
#include "dispatch/capture_kernels.h"
#include "kernels/capture_params.h"

namespace qkv {
inline namespace v0 {

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

  /// Checks everything, then makes or clears the results. A request of the other direction, or none, wants nothing.
  CaptureJob(const char* function, const Problem<T>& p, const CaptureRequest& request, const Context& context, bool backward);

  bool wanted() const { return result_ != nullptr; }
  CaptureJob* if_wanted() { return wanted() ? this : nullptr; }
  /// Scratch of a worker, and of all items together.
  std::size_t worker_bytes() const;
  std::size_t shared_bytes() const;
  /// Before the region: `shared` of shared_bytes().
  void begin(std::byte* shared);

  /// The place of head h among the results; -1: nobody looks at it.
  Index place_of(Index h) const;
  /// Forward of one tile of a head that is looked at, in the bits of p.kernels->forward. Tiles of a head come in the order of
  /// items: the last first. `own`: scratch of worker_bytes().
  void forward(ForwardTile<T> tile, Index b, Index h, void* kernel_scratch, std::byte* own) const;
  /// All of weights times gradient, in a region of its own.
  void run_backward(const CaptureGradient<T>& gradient, Context& context);

 private:
  struct Worker;
  /// Queries [q_begin, q_begin + q_count) of head h of sequence b; `place` among the results.
  struct Rows {
    Index b, place, h, q_begin, q_count;
  };

  Index places() const;
  Index offset(Index b) const;
  bool sweeps() const;
  Index map_rows_of_tile() const;
  void make_results() const;
  void backward(const CaptureGradient<T>& gradient, Index item, std::byte* own) const;
  void write_statistics(const RowSums<T>& sums, const ForwardTile<T>& tile, Index b, Index place) const;
  void sweep(const Worker& w, const Rows& r, const CaptureGradient<T>* gradient, const Sum* lse) const;
  void complete_rows(const Worker& w, const CaptureSweep<T>& t, const Rows& r, const Sum* lse) const;
  void add_to_results(const Worker& w, const Rows& r) const;

  const Problem<T>& p_;
  const Capture* what_ = nullptr;
  CaptureResult* result_ = nullptr;
  const CaptureKernels<T>* kernels_ = nullptr;
  Turn* turns_ = nullptr;  // [B, places]: whose sums are added next
};

}  // namespace v0
}  // namespace qkv
