#include "attention/forward/carried_forward.h"

#include <mutex>

#include "attention/forward/forward_checks.h"
#include "attention/forward/forward_sweep.h"
#include "core/overlap.h"

namespace qkv::inline v0 {

template <class T>
struct [[gnu::visibility("hidden")]] CarriedForward<T>::Impl {
  using Sum = Accumulator<T>;
  using Tile = typename ForwardSweep<T>::Tile;
  static constexpr const char* kFunction = "attention_forward";
  Context& context;
  View<T, 4> out;
  View<Sum, 3> lse;
  std::optional<CarriedProblem<T>> problem;
  std::optional<StripCopy> wide_out, wide_lse, wide_q;  // where rows are no whole strips
  std::optional<ForwardJob<T>> job;
  std::optional<ForwardSweep<T>> sweep;
  bool again = false;  // the keys are added a second time

  Impl(const View<const T, 4>& q, const KeySizes& keys, const View<T, 4>& its_out, const View<Sum, 3>& its_lse,
       const AttentionOptions& options, Context& its_context)
      : context(its_context), out(its_out), lse(its_lse) {
    problem.emplace(kFunction, q, keys, options, context);
    check_sizes_of(kFunction, problem->p, AttentionOutputs<T>{.out = out, .lse = lse});
    const NamedBox boxes[] = {{"out", out}, {"lse", lse}};
    check_outputs(kFunction, boxes, boxes_beside(q, problem->p));
    View<T, 4> to = out;
    View<Sum, 3> lse_to = lse;
    if (const StripRows rows = rows_of_forward(problem->p, false, false); rows.added) {
      const AttentionOptions placed = options_of(options, problem->p, rows);
      wide_q.emplace(row_bytes(q), rows);
      wide_out.emplace(row_bytes(out), rows);
      wide_lse.emplace(row_bytes(lse), rows);
      to = wide_out->view(out);
      lse_to = wide_lse->view(lse);
      problem.emplace(kFunction, View<const T, 4>(wide_q->view(q)), keys, placed, context);
    }
    const Problem<T>& p = problem->p;
    job.emplace(p, to, lse_to, View<Sum, 3>{}, View<Sum, 4>{}, Weights::kSoftmax, nullptr);
    sweep.emplace(*job, all_tiles(p), p.query_tile, context);
  }

  bool finish() {
    const Problem<T>& p = problem->p;
    const Index strip = p.kernels->strip;
    std::vector<Tile> overflown;
    std::mutex mutex;
    sweep->finish([&](const Tile& tile, const ForwardTile<Sum>& forward, const std::uint32_t* lanes) {
      job->take_rows(forward, tile.b, tile.h);
      for (Index begin = tile.queries.begin, n = 0; begin < tile.queries.end; begin += strip, ++n) {
        if (lanes[n] == 0 || again) continue;
        const std::lock_guard lock(mutex);
        overflown.push_back({tile.b, tile.h, {begin, std::min(begin + strip, tile.queries.end)}, lanes[n]});
      }
    });
    sweep.reset();
    if (wide_out) {
      wide_out->take_back(row_bytes(out));
      wide_lse->take_back(row_bytes(lse));
    }
    again = true;
    if (overflown.empty()) return false;
    sweep.emplace(*job, std::move(overflown), strip, context);
    return true;
  }
};

template <class T>
bool carries_forward(const View<const T, 4>& q, const KeySizes& keys, Index queries, const AttentionOptions& options,
                     Context& context) {
  const bool invariant = options.bits == Bits::kInvariant || context.bits() == Bits::kInvariant;
  return options.empty_row != EmptyRow::kMean && !decode_suits(queries * q.size(1) / keys.heads, keys.length, invariant) &&
         !goes_by_lists(q, keys, queries, options, context, false);
}

template <class T>
CarriedForward<T>::CarriedForward(const View<const T, 4>& q, const KeySizes& keys, const View<T, 4>& out,
                                  const View<Accumulator<T>, 3>& lse, const AttentionOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(q, keys, out, lse, options, context)) {}
template <class T>
CarriedForward<T>::~CarriedForward() = default;
template <class T>
void CarriedForward<T>::add(const KeyChunk<T>& chunk) {
  impl_->problem->read(chunk);
  impl_->sweep->add(chunk.begin, chunk.end());
}
template <class T>
bool CarriedForward<T>::finish() {
  return impl_->finish();
}

#define QKV_INSTANTIATE(T)                  \
  template class QKV_API CarriedForward<T>; \
  template QKV_API bool carries_forward(const View<const T, 4>&, const KeySizes&, Index, const AttentionOptions&, Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
