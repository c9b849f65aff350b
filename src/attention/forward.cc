// Forward attention and the weights: one work item per (batch, head, query tile), longest first, one region.
#include <algorithm>

#include "attention/decode.h"
#include "attention/empty_rows.h"
#include "attention/problem.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/region.h"
#include "core/scratch.h"

namespace qkv {
inline namespace v0 {
namespace {

constexpr Index kMaxQueryTile = 256;
constexpr std::size_t kKeptLimitBytes = std::size_t{3} << 19;  // of the 2 MiB that a thread may use; Tk = 8,192 in f32 fits

/// One call, as every work item sees it.
template <class T>
struct ForwardJob {
  using Sum = Accumulator<T>;
  const Problem<T>& p;
  View<T, 4> out;        // null: only weights
  View<Sum, 3> lse;      // null: not wanted
  View<Sum, 4> weights;  // null: not wanted
  bool weights_applied;
  std::byte* scratch = nullptr;
  std::size_t kernel_bytes = 0, scratch_bytes = 0;  // a worker: the kernel's, and with the exponentials kept for weights

  Index chunks() const { return (p.kv_len + p.key_tile - 1) / p.key_tile; }

  /// Bytes of a worker that save a second sweep over the keys; 0 where there is none to save or they would not stay in L2.
  std::size_t kept_bytes() const {
    // Under dropout what multiplies v is not what is wanted, or not in the bits of softmax times factor.
    if (out.data() == nullptr || weights.data() == nullptr || p.dropout_threshold != 0) return 0;
    const auto bytes = static_cast<std::size_t>(chunks() * (p.key_tile + 1) * p.kernels->strip) * sizeof(Sum);
    return kernel_bytes + bytes <= kKeptLimitBytes ? bytes : 0;
  }

  void run(Index item, int worker) const {
    const Index tiles = p.query_tiles();
    const Index head = item / tiles, b = head / p.num_heads, h = head % p.num_heads;
    const Index q_begin = (tiles - 1 - item % tiles) * p.query_tile;  // late queries first: under causal they cost most
    const Index q_count = std::min(p.query_tile, p.q_len - q_begin);
    Sum row_lse[kMaxQueryTile];
    ForwardTile<T> tile{};
    tile.scores = p.scores(b, h);
    tile.v_head_dim = p.v_head_dim;
    tile.q_begin = q_begin;
    tile.q_count = q_count;
    tile.lse = row_lse;
    if (out.data() != nullptr) {
      tile.v = p.v.data() + b * p.v.stride(0) + h / p.group_size() * p.v.stride(1);
      tile.v_stride = p.v.stride(2);
      tile.out = out.data() + b * out.stride(0) + h * out.stride(1);
      tile.out_stride = out.stride(2);
    }
    if (weights.data() != nullptr) {
      tile.weights = weights.data() + b * weights.stride(0) + h * weights.stride(1);
      tile.weights_row_stride = weights.stride(2);
      tile.weights_applied = weights_applied;
    }
    std::byte* own = scratch + static_cast<std::size_t>(worker) * scratch_bytes;
    if (scratch_bytes > kernel_bytes) {
      tile.exponentials = reinterpret_cast<Sum*>(own + kernel_bytes);
      tile.chunk_shifts = tile.exponentials + chunks() * p.key_tile * p.kernels->strip;
    }
    p.kernels->forward(tile, own);
    if (p.rows_can_be_empty()) {
      if (tile.out != nullptr) fill_empty_out(p, b, h, q_begin, q_count, row_lse, tile.out, tile.out_stride);
      if (tile.weights != nullptr) {
        fill_empty_weights(p, b, h, q_begin, q_count, row_lse, weights_applied, tile.weights, tile.weights_row_stride);
      }
    }
    if (lse.data() == nullptr) return;
    for (Index i = 0; i < q_count; ++i) lse(b, h, q_begin + i) = row_lse[i];
  }
};

template <class T>
void run(ForwardJob<T> job, Context& context) {
  const Problem<T>& p = job.p;
  const Index items = p.batch * p.num_heads * p.query_tiles();
  if (items == 0) return;
  job.kernel_bytes = p.kernels->forward_scratch_bytes(p.head_dim, p.v_head_dim);
  job.scratch_bytes = job.kernel_bytes + job.kept_bytes();
  const ScratchLease scratch = borrow_scratch(context, job.scratch_bytes * static_cast<std::size_t>(context.threads()));
  job.scratch = scratch.data();
  const double flops =
      static_cast<double>(items) * kItemFlops + p.pairs() * 2.0 * static_cast<double>(p.head_dim + p.v_head_dim);
  parallel_for_flops(context, items, flops, [&job](Index item, int worker) { job.run(item, worker); });
}

template <class T>
void forward(const char* function, const View<const T, 4>& q, const View<const T, 4>& k, const View<const T, 4>& v,
             const View<T, 4>& out, const View<Accumulator<T>, 3>& lse, const View<Accumulator<T>, 4>* weights,
             const AttentionOptions& options, WeightsKind kind, Context& context) {
  const Problem<T> p = make_problem(function, q, k, v, options, context);
  check_sizes(function, "out", out, p.batch, p.num_heads, p.q_len, p.v_head_dim);
  check<ShapeError>(lse.is_null() || lse.sizes() == typename View<float, 3>::Sizes{p.batch, p.num_heads, p.q_len}, function,
                    "lse must be [B, H, Tq] or null: got ", lse, " for out ", out);
  if (weights != nullptr) check_sizes(function, "weights", *weights, p.batch, p.num_heads, p.q_len, p.kv_len);
  const NamedBox outputs[] = {
      {"out", out}, {"lse", lse}, {"weights", weights == nullptr ? View<Accumulator<T>, 4>{} : *weights}};
  const NamedBox inputs[] = {{"q", q}, {"k", k}, {"v", v}, {"bias", p.bias}};
  check_outputs(function, outputs, inputs);
  const bool wants_weights = weights != nullptr && p.kv_len > 0, applied = kind == WeightsKind::kApplied;
  if (decode_suits(p)) {
    decode_forward(p, out, lse, context);  // the same bits as without weights
    if (wants_weights) run<T>({p, {}, {}, *weights, applied}, context);
  } else {
    run<T>({p, out, lse, wants_weights ? *weights : View<Accumulator<T>, 4>{}, applied}, context);
  }
}

template <class T>
void weights(const View<const T, 4>& q, const View<const T, 4>& k, const View<Accumulator<T>, 4>& result,
             const AttentionOptions& options, WeightsKind kind, Context& context) {
  constexpr const char* function = "attention_weights";
  const Problem<T> p = make_problem(function, q, k, {}, options, context, Use::kWeights);
  check_sizes(function, "weights", result, p.batch, p.num_heads, p.q_len, p.kv_len);
  const NamedBox outputs[] = {{"weights", result}};
  const NamedBox inputs[] = {{"q", q}, {"k", k}, {"bias", p.bias}};
  check_outputs(function, outputs, inputs);
  if (p.kv_len > 0) run<T>({p, {}, {}, result, kind == WeightsKind::kApplied}, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                             \
  void attention_forward(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out,              \
                         View<Accumulator<T>, 3> lse, const AttentionOptions& options, Context& context) {        \
    forward<T>("attention_forward", q, k, v, out, lse, nullptr, options, WeightsKind::kSoftmax, context);         \
  }                                                                                                               \
  void attention_forward_with_weights(View<const T, 4> q, View<const T, 4> k, View<const T, 4> v, View<T, 4> out, \
                                      View<Accumulator<T>, 3> lse, View<Accumulator<T>, 4> result,                \
                                      const AttentionOptions& options, WeightsKind kind, Context& context) {      \
    forward<T>("attention_forward_with_weights", q, k, v, out, lse, &result, options, kind, context);             \
  }                                                                                                               \
  void attention_weights(View<const T, 4> q, View<const T, 4> k, View<Accumulator<T>, 4> result,                  \
                         const AttentionOptions& options, WeightsKind kind, Context& context) {                   \
    weights<T>(q, k, result, options, kind, context);                                                             \
  }
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
