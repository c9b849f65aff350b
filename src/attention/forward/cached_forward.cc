// Attention on a KeyValue: its own checks, then the same work items as without a cache, whose kernels read the cache's rows.
// And the cascade: keys that all sequences share are one sequence, which the queries of all sequences attend.
#include <algorithm>

#include "attention/forward/forward_checks.h"
#include "attention/forward/forward_driver.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"
#include "qkv/kv_cache.h"

namespace qkv::inline v0 {

namespace {

template <class T>
void check_results(const char* function, const Problem<T>& p, const View<const T, 4>& q, const AttentionOutputs<T>& outputs,
                   const AttentionOptions& options) {
  check<UnsupportedError>(!is_asked_for(outputs.weights), function, "weights are not computed on a cache");
  check<UnsupportedError>(!is_asked_for(outputs.lse_low), function, "lse_low is not computed on a cache");
  check_asked_for(function, p, outputs, options);
  check_sizes_of(function, p, outputs);
  const NamedBox boxes[] = {{"out", outputs.out}, {"lse", outputs.lse}};
  const NamedBox inputs[] = {{"q", q}, {"bias", p.bias}, {"sinks", p.sinks}, {"position_bias", position_table(p)}};
  check_outputs(function, boxes, inputs);
}

template <class T>
void forward(const View<const T, 4>& q, const KeyValue& kv, const AttentionOutputs<T>& outputs, const AttentionOptions& options,
             Context& context) {
  constexpr const char* function = "attention_forward";
  CallMemory memory;
  const Problem<T> p = make_cached_problem(function, q, kv, options, context, memory);
  check_results(function, p, q, outputs, options);
  forward_batch<T>(Batch<T>(p), outputs, nullptr, context);
}

constexpr const char* kCascade = "attention_forward_cascade";

/// Refuses options that need a key's position among all keys, or that must be added once.
void refuse_in_cascade(const AttentionOptions& options) {
  check<UnsupportedError>(options.sinks.is_null(), kCascade, "sinks are not computed in a cascade");
  check<UnsupportedError>(options.score_mod == nullptr, kCascade, "score_mod is not computed in a cascade");
  check<UnsupportedError>(options.bias.f32.is_null() && options.bias.f64.is_null() && options.position_bias.is_none(), kCascade,
                          "biases are not computed in a cascade");
}

/// Throws OptionError unless the sequences hold their first `shared` keys in the same pages.
void check_shared_pages(const KeyValue& kv, Index shared) {
  const KeyValue::Parts& p = kv.parts();
  check<OptionError>(shared >= 0, kCascade, "shared must not be negative: got ", shared);
  for (Index b = 0; b < kv.batch(); ++b) {
    check<OptionError>(kv.length(b) >= shared && first_held(kv, b) == 0, kCascade,
                       "every sequence must hold all shared keys: got ", shared, " for one of length ", kv.length(b));
    const HeadKeys first = cached_head(kv, 0, 0), other = cached_head(kv, b, 0);
    const Index pages = (shared + p.page_size - 1) / p.page_size;
    const bool same = first.k.rows == other.k.rows &&
                      (first.pages == other.pages || std::equal(first.pages, first.pages + pages, other.pages));
    check<OptionError>(same, kCascade, "shared keys must lie in the same pages: sequence ", b, " has others for the first ",
                       shared);
  }
}

/// Throws OptionError unless the mask lets every query attend all of the shared keys.
template <class T>
void check_all_seen(const Problem<T>& p, Index shared, std::uint32_t* lane_masks) {
  if (p.mask.keeps_all()) return;
  for (Index b = 0; b < p.batch; ++b) {
    for (Index h = 0; h < p.num_heads; ++h) {
      for (Index i0 = 0; i0 < p.q_len; i0 += 32) {
        const int answer = mask_tile(&p.mask, b, h, i0, std::min<Index>(32, p.q_len - i0), 0, shared, lane_masks);
        check<OptionError>(answer == kTileFull, kCascade, "every query must see all ", shared, " shared keys: not those from ",
                           i0, " on of sequence ", b);
      }
    }
  }
}

/// to = from, element by element.
template <class From, class To>
void convert_rows(const View<From, 4>& from, const View<To, 4>& to) {
  for (Index b = 0; b < to.size(0); ++b) {
    for (Index h = 0; h < to.size(1); ++h) {
      for (Index i = 0; i < to.size(2); ++i) {
        const From* x = &from(b, h, i, 0);
        std::transform(x, x + to.size(3), &to(b, h, i, 0), [](From one) { return static_cast<To>(one); });
      }
    }
  }
}

template <class T>
void cascade(const View<const T, 4>& q, const KeyValue& kv, Index shared, const AttentionOutputs<T>& outputs,
             const AttentionOptions& options, Context& context) {
  using Sum = Accumulator<T>;
  check_shared_pages(kv, shared);
  refuse_in_cascade(options);
  AttentionOptions of_parts = options;
  of_parts.empty_row = EmptyRow::kZero;
  CallMemory memory;
  const Problem<T> p = make_cached_problem(kCascade, q, kv, of_parts, context, memory);
  check_results(kCascade, p, q, outputs, of_parts);
  if (shared == 0 || p.batch * p.num_heads * p.q_len == 0) {
    forward(q, kv, outputs, options, context);
    return;
  }
  const Index rows = p.batch * p.num_heads * p.q_len;
  std::uint32_t* lane_masks = nullptr;
  View<T, 4> outs[2];            // [B, H, Tq, Dv]
  View<Sum, 3> lses[2], merged;  // [B, H, Tq]
  Index* sequences = nullptr;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    lane_masks = carver.take<std::uint32_t>(shared);
    for (View<T, 4>& each : outs) each = {carver.take<T>(rows * p.v_head_dim), outputs.out.sizes()};
    for (View<Sum, 3>* each : {&lses[0], &lses[1], &merged}) {
      *each = {carver.take<Sum>(rows), {p.batch, p.num_heads, p.q_len}};
    }
    sequences = carver.take<Index>(p.q_len);
    return carver.used();
  };
  const ScratchLease parts_memory = borrow_scratch(context, carve(nullptr));
  carve(parts_memory.data());
  check_all_seen(p, shared, lane_masks);
  KeyValue::Parts common = kv.parts();
  std::fill_n(sequences, p.q_len, common.sequences == nullptr ? 0 : common.sequences[0]);
  common.sequences = sequences;
  common.lengths = common.firsts = nullptr;
  common.window = common.pinned = 0;
  common.batch = p.q_len;
  common.max_length = shared;
  of_parts.mask = {};
  // Sequences become the queries of one sequence: [Tq, H, B, D].
  forward<T>(q.transposed(0, 2), KeyValue(common), {.out = outs[0].transposed(0, 2), .lse = lses[0].transposed(0, 2)}, of_parts,
             context);
  of_parts.mask = options.mask;
  forward<T>(q, kv.without_first(shared), {.out = outs[1], .lse = lses[1]}, of_parts, context);
  const View<const T, 4> parts[] = {outs[0], outs[1]};
  const View<const Sum, 3> part_lses[] = {lses[0], lses[1]};
  merge_attention(parts, part_lses, outputs.out, outputs.lse.is_null() ? merged : outputs.lse, context);
}

/// 16-bit queries are widened: otherwise parts would be rounded before the merge, and out must be rounded only once.
template <class T>
void cascade_rounded_once(const View<const T, 4>& q, const KeyValue& kv, Index shared, const AttentionOutputs<T>& outputs,
                          const AttentionOptions& options, Context& context) {
  using Sum = Accumulator<T>;
  if constexpr (std::is_same_v<T, Sum>) {
    cascade(q, kv, shared, outputs, options, context);
  } else {
    {
      CallMemory memory;
      AttentionOptions checked = options;
      checked.empty_row = EmptyRow::kZero;  // no row is empty, as below
      check_results(kCascade, make_cached_problem(kCascade, q, kv, checked, context, memory), q, outputs, checked);
    }
    const ScratchLease memory =
        borrow_scratch(context, static_cast<std::size_t>(q.count() + outputs.out.count()) * sizeof(Sum));
    const View<Sum, 4> wide_q(reinterpret_cast<Sum*>(memory.data()), q.sizes());
    const View<Sum, 4> wide_out(wide_q.data() + q.count(), outputs.out.sizes());
    convert_rows(q, wide_q);
    cascade<Sum>(wide_q, kv, shared, {.out = wide_out, .lse = outputs.lse}, options, context);
    convert_rows(wide_out, outputs.out);
  }
}

}  // namespace

#define QKV_DEFINE(T)                                                                                                      \
  void attention_forward(View<const T, 4> q, const KeyValue& kv, const AttentionOutputs<T>& outputs,                       \
                         const AttentionOptions& options, Context& context) {                                              \
    forward<T>(q, kv, outputs, options, context);                                                                          \
  }                                                                                                                        \
  void attention_forward_cascade(View<const T, 4> q, const KeyValue& kv, Index shared, const AttentionOutputs<T>& outputs, \
                                 const AttentionOptions& options, Context& context) {                                      \
    cascade_rounded_once<T>(q, kv, shared, outputs, options, context);                                                     \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
