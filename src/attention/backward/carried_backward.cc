#include "attention/backward/carried_backward.h"

#include <optional>

#include "attention/backward/shared_gradients.h"
#include "attention/call/memory_checks.h"
#include "attention/call/row_lse.h"
#include "attention/forward/saved_rows.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kBackward = "attention_backward";

/// Whether an lse of the queries of a head is coarse.
bool any_coarse(const AnyView& lse, Index b, Index h, const Positions& queries) {
  return with_sums(lse.type, [&]<class Sum>(Sum) {
    bool any = false;
    for (Index i = queries.begin; i < queries.end && !any; ++i) any = is_coarse(*lse.as<Sum>(b, h, i));
    return any;
  });
}

}  // namespace

struct [[gnu::visibility("hidden")]] CarriedBackward::Impl {
  Context& context;
  CarriedProblem problem;
  StripRows strips;
  StripCopy q, out, dout, lse, dlse, dq;
  BackwardInputs inputs;
  Gradients gradients;
  ScratchLease memory;
  CarriedRanges ranges{};
  AnyView lse_low, computed_lse, computed_low;  // [B, H, Tq]: the rounding error of lse; of forward, computed again
  std::optional<SavedRows> maxima;

  /// Rows that are added have lse = inf, so that their weights are 0.
  Impl(const AnyView& given_q, const KeySizes& keys, const BackwardInputs& in, const Gradients& wanted,
      const AttentionOptions& options, Context& given_context)
      : context(given_context),
        problem(kBackward, given_q, keys, options, context),
        strips(rows_of_backward(problem.p)),
        q(given_q, strips),
        out(in.out, strips),
        dout(in.dout, strips),
        lse(in.lse, strips, StripCopy::Fill::kInfinity),
        dlse(wanted.dlse, strips),
        dq(wanted.dq, strips),
        inputs{out.wide(), lse.wide(), dout.wide()} {
    Problem& p = problem.p;
    check_shared_gradients(kBackward, p, {});  // before the maxima
    p.use_sum_tiles();
    const NamedBox boxes[] = {{"dq", wanted.dq}};
    const NamedBox read[] = {{"out", in.out}, {"lse", in.lse}, {"dout", in.dout}, {"dlse", wanted.dlse}};
    check_memory(kBackward, p, p.mask.node, boxes, read);
    gradients.dq = dq.wide();
    gradients.dlse = dlse.wide();
    gradients.accumulate = wanted.accumulate;
    p = widened(p, strips, q.wide());
    const Index numbers = p.batch * p.num_heads * p.q_len, bytes = numbers * p.sum_bytes();
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      ranges.numbers = carver.array<std::byte>(3 * bytes);
      ranges.dq = carver.array<std::byte>(p.rounds() ? std::max<Index>(1, bytes * p.head_dim) : 0);
      for (AnyView* each : {&lse_low, &computed_lse, &computed_low}) {
        *each = inputs.lse;
        each->data = carver.array<std::byte>(bytes);
        each->strides = {p.num_heads * p.q_len, p.q_len, 1};
      }
      return carver.used();
    };
    memory = borrow_scratch(context, carve(nullptr));
    carve(memory.data());
    zero_all(lse_low);
    gradients.lse_low = lse_low;
  }

  void begin_maxima() {
    maxima.emplace(problem.p, Outputs{.lse = computed_lse, .lse_low = computed_low}, context, true);
    maxima->only([&](Index b, Index h, const Positions& queries) { return any_coarse(inputs.lse, b, h, queries); });
  }
  /// As split_lse does for one tile: what was lost is known where forward gives exactly the lse that was given.
  void end_maxima() {
    maxima->finish();
    const Problem& p = problem.p;
    with_sums(p.q.type, [&]<class Sum>(Sum) {
      for (Index row = 0; row < p.batch * p.num_heads * p.q_len; ++row) {
        const Index b = row / p.q_len / p.num_heads, h = row / p.q_len % p.num_heads, i = row % p.q_len;
        const Sum given = *inputs.lse.as<Sum>(b, h, i);
        Sum &computed = *computed_lse.as<Sum>(b, h, i), &low = *computed_low.as<Sum>(b, h, i);
        const bool known = is_coarse(given) && computed == given;
        computed = std::numeric_limits<Sum>::quiet_NaN();
        if (!known) continue;
        if (is_vast(given)) {
          const auto [shift, sum] = maxima->totals<Sum>(b, h, i);
          split_sum(shift, sum, computed, low);
        } else {
          *lse_low.as<Sum>(b, h, i) = low;
        }
      }
    });
    maxima.reset();
    ranges.vast_high = computed_lse;
    ranges.vast_low = computed_low;
  }

  void add(const KeyChunk& chunk, const AnyView& dk, const AnyView& dv, const Gradients& shared) {
    Problem& p = problem.p;
    p.keys.read(chunk.k, chunk.v, chunk.begin);
    check_shared_gradients(kBackward, p, shared);
    const bool last = chunk.end() == p.kv_len;
    Gradients wanted = gradients;
    wanted.dk = dk;
    wanted.dv = dv;
    wanted.dbias = shared.dbias;
    wanted.dposition_bias = shared.dposition_bias;
    if (last) wanted.dsinks = shared.dsinks;
    ranges.begin = chunk.begin / p.backward_keys;
    ranges.end = (chunk.end() + p.backward_keys - 1) / p.backward_keys;
    ranges.first_key = chunk.begin;
    backward_batch(Batch(p), inputs, wanted, context, &ranges);
    if (last) dq.copy_back();
  }
};

bool carries_backward(
    const AnyView& q, const KeySizes& keys, Index queries, const AttentionOptions& options, Context& context) {
  return is_tiled(q, keys, queries, options, context, true);
}

bool lse_is_coarse(const AnyView& lse) {
  bool any = false;
  for (Index head = 0; head < lse.size(0) * lse.size(1) && !any; ++head) {
    any = any_coarse(lse, head / lse.size(1), head % lse.size(1), {0, lse.size(2)});
  }
  return any;
}

CarriedBackward::CarriedBackward(const AnyView& q, const KeySizes& keys, const BackwardInputs& inputs,
    const Gradients& gradients, const AttentionOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(q, keys, inputs, gradients, options, context)) {}
CarriedBackward::~CarriedBackward() = default;

void CarriedBackward::add_maxima(const KeyChunk& chunk) {
  if (!impl_->maxima) impl_->begin_maxima();
  impl_->problem.p.keys.read(chunk.k, {}, chunk.begin);
  impl_->maxima->add(chunk.begin, chunk.end());
}
void CarriedBackward::end_maxima() {
  if (impl_->maxima) impl_->end_maxima();
}
void CarriedBackward::add(const KeyChunk& chunk, const AnyView& dk, const AnyView& dv, const Gradients& shared) {
  impl_->add(chunk, dk, dv, shared);
}

}  // namespace qkv::inline v0
