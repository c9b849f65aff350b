#include "attention/backward/carried_backward.h"

#include "attention/backward/gradient_sums.h"
#include "attention/backward/shared_gradients.h"
#include "attention/call/row_lse.h"
#include "attention/forward/saved_rows.h"
#include "core/overlap.h"

namespace qkv::inline v0 {

template <class T>
struct [[gnu::visibility("hidden")]] CarriedBackward<T>::Impl {
  static constexpr const char* kFunction = "attention_backward";
  Context& context;
  BackwardInputs<T> inputs;
  AttentionGradients<T> gradients;
  View<T, 4> dq;  // the caller's
  std::optional<CarriedProblem<T>> problem;
  std::optional<StripCopy> wide_q, wide_out, wide_dout, wide_lse, wide_dlse, wide_dq;  // where rows are no whole strips
  ScratchLease memory;
  CarriedRanges<T> ranges{};
  View<Sum, 3> lse_low, computed_lse, computed_low;  // [B, H, Tq]: what rounding took from lse; of forward, computed again
  std::optional<SavedRows<T>> maxima;

  Impl(const View<const T, 4>& q, const KeySizes& keys, const BackwardInputs<T>& its_inputs,
       const AttentionGradients<T>& its_gradients, const AttentionOptions& options, Context& its_context)
      : context(its_context), inputs(its_inputs), dq(its_gradients.dq) {
    gradients.dq = dq;
    gradients.dlse = its_gradients.dlse;
    gradients.accumulate = its_gradients.accumulate;
    problem.emplace(kFunction, q, keys, options, context);
    const NamedBox boxes[] = {{"dq", dq}};
    std::vector<NamedBox> read = boxes_beside(q, problem->p);
    for (const NamedBox& box :
         {NamedBox{"out", inputs.out}, {"lse", inputs.lse}, {"dout", inputs.dout}, {"dlse", gradients.dlse}})
      read.push_back(box);
    check_outputs(kFunction, boxes, read);
    if (const StripRows rows = rows_of_backward(problem->p); rows.added) widen(q, keys, rows, options);
    const Problem<T>& p = problem->p;
    const Index numbers = p.batch * p.num_heads * p.q_len;
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      ranges.delta = carver.take<Sum>(numbers);
      ranges.lse2_high = carver.take<Sum>(numbers);
      ranges.lse2_low = carver.take<Sum>(numbers);
      ranges.dq = carver.take<Sum>(kRoundedAtEnd<T> ? std::max<Index>(1, numbers * p.head_dim) : 0);
      for (View<Sum, 3>* each : {&lse_low, &computed_lse, &computed_low})
        *each = {carver.take<Sum>(numbers), {p.batch, p.num_heads, p.q_len}};
      return carver.used();
    };
    memory = borrow_scratch(context, carve(nullptr));
    carve(memory.data());
    std::fill_n(lse_low.data(), numbers, Sum{0});
    gradients.lse_low = lse_low;
  }

  /// Rows that are added have lse = inf, so that their weights are 0.
  void widen(const View<const T, 4>& q, const KeySizes& keys, const StripRows& rows, const AttentionOptions& options) {
    const Sum infinity = std::numeric_limits<Sum>::infinity();
    wide_q.emplace(row_bytes(q), rows);
    wide_out.emplace(row_bytes(inputs.out), rows);
    wide_dout.emplace(row_bytes(inputs.dout), rows);
    wide_lse.emplace(row_bytes(inputs.lse), rows, &infinity, sizeof(Sum));
    wide_dlse.emplace(row_bytes(gradients.dlse), rows);
    wide_dq.emplace(row_bytes(dq), rows);
    inputs = {wide_out->view(inputs.out), wide_lse->view(inputs.lse), wide_dout->view(inputs.dout)};
    gradients.dlse = wide_dlse->view(gradients.dlse);
    gradients.dq = wide_dq->view(dq);
    const AttentionOptions placed = options_of(options, problem->p, rows);
    problem.emplace(kFunction, View<const T, 4>(wide_q->view(q)), keys, placed, context);
  }

  /// Calls body(b, h, i) for every row of which lse is coarse; stops where that gives true, and returns whether it did.
  template <class Body>
  bool each_coarse(const Positions& queries, Index b, Index h, const Body& body) const {
    for (Index i = queries.begin; i < queries.end; ++i) {
      if (is_coarse(inputs.lse(b, h, i)) && body(b, h, i)) return true;
    }
    return false;
  }
  void begin_maxima() {
    maxima.emplace(problem->p, AttentionOutputs<T>{.lse = computed_lse, .lse_low = computed_low}, context);
    maxima->only([&](Index b, Index h, const Positions& queries) {
      return each_coarse(queries, b, h, [](Index, Index, Index) { return true; });
    });
  }
  /// As split_lse does for one tile: what was lost is known where forward gives exactly the lse that was given.
  void end_maxima() {
    maxima->finish();
    maxima.reset();
    const Problem<T>& p = problem->p;
    for (Index head = 0; head < p.batch * p.num_heads; ++head) {
      each_coarse({0, p.q_len}, head / p.num_heads, head % p.num_heads, [&](Index b, Index h, Index i) {
        if (computed_lse(b, h, i) == inputs.lse(b, h, i)) lse_low(b, h, i) = computed_low(b, h, i);
        return false;
      });
    }
  }

  void add(const KeyChunk<T>& chunk, const View<Sum, 4>& dk, const View<Sum, 4>& dv, const AttentionGradients<T>& shared) {
    problem->read(chunk);
    const Problem<T>& p = problem->p;
    check_shared_gradients(kFunction, p, shared.dbias, shared.dsinks, shared.dposition_bias);
    const bool last = chunk.end() == p.kv_len;
    AttentionGradients<T> wanted = gradients;
    wanted.dk_sums = CarriedProblem<T>::of_all(dk, chunk.begin, p.kv_len);
    wanted.dv_sums = CarriedProblem<T>::of_all(dv, chunk.begin, p.kv_len);
    if constexpr (!kRoundedAtEnd<T>) {  // sums are gradients
      wanted.dk = wanted.dk_sums;
      wanted.dv = wanted.dv_sums;
    }
    wanted.dbias = shared.dbias;
    wanted.dposition_bias = shared.dposition_bias;
    if (last) wanted.dsinks = shared.dsinks;
    ranges.begin = chunk.begin / p.backward_keys;
    ranges.end = (chunk.end() + p.backward_keys - 1) / p.backward_keys;
    backward_batch(Batch<T>(p), inputs, wanted, context, &ranges);
    if (last && wide_dq) wide_dq->copy_to(row_bytes(dq));
  }
};

template <class T>
bool carries_backward(const View<const T, 4>& q, const KeySizes& keys, Index queries, const AttentionOptions& options,
                      Context& context) {
  return is_tiled(q, keys, queries, options, context, true);
}

template <class Sum>
bool lse_is_coarse(const View<const Sum, 3>& lse) {
  for (Index b = 0; b < lse.size(0); ++b) {
    for (Index h = 0; h < lse.size(1); ++h) {
      for (Index i = 0; i < lse.size(2); ++i) {
        if (is_coarse(lse(b, h, i))) return true;
      }
    }
  }
  return false;
}

template <class T>
CarriedBackward<T>::CarriedBackward(const View<const T, 4>& q, const KeySizes& keys, const BackwardInputs<T>& inputs,
                                    const AttentionGradients<T>& gradients, const AttentionOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(q, keys, inputs, gradients, options, context)) {}
template <class T>
CarriedBackward<T>::~CarriedBackward() = default;
template <class T>
void CarriedBackward<T>::add_maxima(const KeyChunk<T>& chunk) {
  if (!impl_->maxima) impl_->begin_maxima();
  impl_->problem->read({chunk.k, {}, chunk.begin});
  impl_->maxima->add(chunk.begin, chunk.end());
}
template <class T>
void CarriedBackward<T>::end_maxima() {
  if (impl_->maxima) impl_->end_maxima();
}
template <class T>
void CarriedBackward<T>::add(const KeyChunk<T>& chunk, const View<Sum, 4>& dk, const View<Sum, 4>& dv,
                             const AttentionGradients<T>& shared) {
  impl_->add(chunk, dk, dv, shared);
}

#define QKV_INSTANTIATE(T)                   \
  template class QKV_API CarriedBackward<T>; \
  template QKV_API bool carries_backward(const View<const T, 4>&, const KeySizes&, Index, const AttentionOptions&, Context&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE
template QKV_API bool lse_is_coarse(const View<const float, 3>&);
template QKV_API bool lse_is_coarse(const View<const double, 3>&);

}  // namespace qkv::inline v0
