#include "attention/forward/carried_forward.h"

#include "attention/forward/forward_checks.h"
#include "attention/forward/saved_rows.h"
#include "core/overlap.h"

namespace qkv::inline v0 {

template <class T>
struct [[gnu::visibility("hidden")]] CarriedForward<T>::Impl {
  using Sum = Accumulator<T>;
  static constexpr const char* kFunction = "attention_forward";
  View<T, 4> out;
  View<Sum, 3> lse;
  std::optional<CarriedProblem<T>> problem;
  std::optional<StripCopy> wide_out, wide_lse, wide_q;  // where rows are no whole strips
  std::optional<SavedRows<T>> rows;
  bool again = false;  // the keys are added a second time

  Impl(const View<const T, 4>& q, const KeySizes& keys, const View<T, 4>& to, const View<Sum, 3>& lse_to,
       const AttentionOptions& options, Context& context)
      : out(to), lse(lse_to) {
    problem.emplace(kFunction, q, keys, options, context);
    AttentionOutputs<T> outputs{.out = out, .lse = lse};
    check_sizes_of(kFunction, problem->p, outputs);
    const NamedBox boxes[] = {{"out", out}, {"lse", lse}};
    check_outputs(kFunction, boxes, boxes_beside(q, problem->p));
    if (const StripRows strips = rows_of_forward(problem->p, false, false); strips.added) {
      const AttentionOptions placed = options_of(options, problem->p, strips);
      wide_q.emplace(row_bytes(q), strips);
      wide_out.emplace(row_bytes(out), strips);
      wide_lse.emplace(row_bytes(lse), strips);
      outputs = {.out = wide_out->view(out), .lse = wide_lse->view(lse)};
      problem.emplace(kFunction, View<const T, 4>(wide_q->view(q)), keys, placed, context);
    }
    rows.emplace(problem->p, outputs, context);
  }

  bool finish() {
    again = rows->finish() && !again;
    if (wide_out) {
      wide_out->copy_to(row_bytes(out));
      wide_lse->copy_to(row_bytes(lse));
    }
    return again;
  }
};

template <class T>
bool carries_forward(const View<const T, 4>& q, const KeySizes& keys, Index queries, const AttentionOptions& options,
                     Context& context) {
  return options.empty_row != EmptyRow::kMean && is_tiled(q, keys, queries, options, context, false);
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
  impl_->rows->add(chunk.begin, chunk.end());
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
