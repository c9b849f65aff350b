// A capture within one call: checked, its results made, and what a work item does for it.
#pragma once

#include <algorithm>

#include "attention/call/problem.h"
#include "core/threads/scratch.h"
#include "core/threads/turns.h"
#include "dispatch/kernels.h"
#include "kernels/capture/params.h"

namespace qkv::inline v0 {

/// Inputs of a weight's gradient besides a Problem.
struct CaptureGradient {
  const AnyView &lse, &dout;  // [B, H, Tq], [B, H, Tq, Dv]
};

/// A call's captures, in its sizes.
class CaptureShape {
 public:
  /// Checks everything, then makes or clears the results. Without a request, or with one of the other direction, does
  /// nothing.
  CaptureShape(const char* function, const Problem& p, const CaptureRequest& request, bool backward);

  bool wanted() const { return result_ != nullptr; }
  /// The slot of head h among the results; -1: it is not captured.
  Index slot_of(Index h) const {
    if (what_->heads.empty()) return h;
    const auto found = std::ranges::find(what_->heads, h);
    return found == what_->heads.end() ? -1 : found - what_->heads.begin();
  }

 protected:
  /// Heads that are captured.
  Index slots() const { return what_->heads.empty() ? p_.num_heads : std::ssize(what_->heads); }
  Index head_at(Index slot) const { return what_->heads.empty() ? slot : what_->heads[static_cast<std::size_t>(slot)]; }
  /// Whether the scores are computed a second time.
  bool sweeps() const { return !what_->rows.empty() || what_->top_k > 0 || what_->column_mass || what_->map_rows > 0; }
  /// Rows of the map from that of a tile's first query to that of its last, those without a query between them too.
  Index map_rows_of_tile() const {
    return std::min(what_->map_rows, (p_.query_tile - 1) * what_->map_rows / std::max<Index>(p_.q_len, 1) + 2);
  }
  /// Query i of sequence b stands at key i + this.
  Index offset(Index b) const {
    return what_->offsets.empty() ? p_.length(b) - p_.q_len : what_->offsets[static_cast<std::size_t>(b)];
  }

  const Problem& p_;
  const Capture* what_ = nullptr;
  CaptureResult* result_ = nullptr;
};

template <class Sum> class CaptureJob : public CaptureShape {
 public:
  CaptureJob(const char* function, const Problem& p, const CaptureRequest& request, bool backward)
      : CaptureShape(function, p, request, backward), kernels_(for_element<Sum>(p.tables->capture)) {}

  CaptureJob* if_wanted() { return wanted() ? this : nullptr; }
  /// Scratch per worker, and shared by all items.
  std::size_t worker_bytes() const;
  std::size_t shared_bytes() const;
  /// Call before the region; `shared` has shared_bytes().
  void begin(std::byte* shared);

  /// Forward of one tile of a captured head, bit-identical to run_forward. Tiles of a head come in the order of
  /// items: the last first. `own`: scratch of worker_bytes().
  void forward(ForwardTile<Sum> tile, Index b, Index h, void* kernel_scratch, std::byte* own) const;
  /// Captures weights times gradient as a whole, in a region of its own.
  void run_backward(const AnyView& lse, const AnyView& dout, Context& context);

 private:
  struct Worker;
  /// Queries [q_begin, q_begin + q_count) of head h of sequence b; `slot` among the results.
  struct Rows {
    Index b, slot, h, q_begin, q_count;
  };

  void backward(const CaptureGradient& gradient, Index item, std::byte* own) const;
  void write_statistics(const RowSums<Sum>& sums, const ForwardTile<Sum>& tile, Index b, Index slot) const;
  void sweep(const Worker& w, const Rows& r, const CaptureGradient* gradient, const Sum* lse) const;
  void complete_rows(const Worker& w, const CaptureSweep<Sum>& t, const Rows& r, const Sum* lse) const;
  void add_to_results(const Worker& w, const Rows& r) const;

  const CaptureKernels<Sum>& kernels_;
  Turn* turns_ = nullptr;  // [B, slots]: whose sums are added next
};

}  // namespace qkv::inline v0
