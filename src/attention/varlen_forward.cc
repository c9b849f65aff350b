// Forward attention and the weights of a ragged batch: the work items of every sequence, tiled or decode as each alone would
// be, in one region. Sequences with many keys come first; those that decode, whose items are small and merge in turn, last.
// Where a sequence that decodes shall give weights too, it has tiled items for these beside, as alone.
#include <algorithm>
#include <new>
#include <vector>

#include "attention/decode_job.h"
#include "attention/forward_job.h"
#include "attention/plan.h"
#include "attention/varlen.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"

namespace qkv {
inline namespace v0 {
namespace {

/// One sequence, or its weights alone, in the order in which work is dealt out.
struct Place {
  Index sequence, first_item;
  Index first_turn;    // of those items that merge in turn
  Index first_weight;  // of the sequence, among all weights
  bool decodes, weights_only;
};

template <class T>
struct RaggedForward {
  using Sum = Accumulator<T>;
  const RaggedProblem<T>& r;
  View<T, 3> out;          // [total_q, H, Dv]
  View<Sum, 2> lse;        // [total_q, H]; null: not wanted
  Sum* weights = nullptr;  // [H, Tq, Tk] of each sequence, one behind the other; null: not wanted
  bool weights_applied = false, weights_only = false;
  std::span<Place> places{};
  Index items = 0, turns = 0;
  std::size_t kernel_bytes = 0, worker_bytes = 0, state_bytes = 0, place_bytes = 0;
  std::byte *state = nullptr, *workers = nullptr;
  Turn* turn = nullptr;

  bool decodes(const Problem<T>& p) const { return !weights_only && decode_suits(p); }

  /// What a tiled item of a sequence sees, but for its scratch memory.
  ForwardJob<T> tiled_job(const Problem<T>& p, const Place& place) const {
    const Index b = place.sequence;
    ForwardJob<T> job{p, {}, {}, {}, weights_applied};
    if (!place.weights_only) {
      job.out = r.queries(out, b);
      job.lse = r.query_numbers(lse, b);
    }
    if (weights != nullptr) {
      job.weights = {weights + place.first_weight, {p.batch, p.num_heads, p.q_len, p.kv_len}};
      job.weights = {job.weights.data(), job.weights.sizes(), {0, p.q_len * p.kv_len, p.kv_len, 1}};
    }
    job.kernel_bytes = kernel_bytes;
    job.scratch_bytes = kernel_bytes + job.kept_bytes();
    return job;
  }

  /// How many places there are and how much memory their items need, whatever their order.
  Index measure() {
    kernel_bytes = r.shared.kernels->forward_scratch_bytes(r.shared.head_dim, r.shared.v_head_dim);
    Index num_places = 0;
    for (Index b = 0; b < r.batch; ++b) {
      const Problem<T> p = r.sequence(b);
      const bool its_decodes = decodes(p);
      if (its_decodes) {
        const DecodeShape shape = decode_shape(p);
        worker_bytes = std::max(worker_bytes, lines(shape.worker_bytes()));
        state_bytes = std::max(state_bytes, lines(shape.state_bytes));
        ++num_places;
      }
      if (its_decodes && weights == nullptr) continue;
      worker_bytes =
          std::max(worker_bytes, lines(tiled_job(p, {b, 0, 0, 0, false, its_decodes || weights_only}).scratch_bytes));
      ++num_places;
    }
    place_bytes = lines(static_cast<std::size_t>(num_places) * sizeof(Place));
    return num_places;
  }

  /// Puts the sequences in order and numbers their items.
  void deal_out() {
    std::size_t next = 0;
    Index first_weight = 0;
    for (Index b = 0; b < r.batch; ++b) {
      const Problem<T> p = r.sequence(b);
      const bool its_decodes = decodes(p);
      if (its_decodes) places[next++] = {b, 0, 0, 0, true, false};
      if (!its_decodes || weights != nullptr) places[next++] = {b, 0, 0, first_weight, false, its_decodes || weights_only};
      first_weight += p.num_heads * p.q_len * p.kv_len;
    }
    const auto earlier = [this](const Place& x, const Place& y) {
      if (x.decodes != y.decodes) return y.decodes;
      const Index x_keys = r.kv_len(x.sequence), y_keys = r.kv_len(y.sequence);
      return x_keys != y_keys ? x_keys > y_keys : x.sequence < y.sequence;
    };
    std::sort(places.begin(), places.end(), earlier);
    for (Place& place : places) {
      place.first_item = items;
      place.first_turn = turns;
      const Problem<T> p = r.sequence(place.sequence);
      if (!place.decodes) {
        items += p.num_heads * p.query_tiles();
        continue;
      }
      const Index parts = decode_shape(p).parts;
      items += p.num_kv_heads * parts;
      if (parts > 1) turns += p.num_kv_heads * parts;
    }
  }

  void run(Index item, int worker) const {
    const Place& place = place_of<Place>(places, item);
    const Index b = place.sequence, own = item - place.first_item;
    const Problem<T> p = r.sequence(b);
    std::byte* scratch = workers + static_cast<std::size_t>(worker) * worker_bytes;
    if (place.decodes) {
      const DecodeShape shape = decode_shape(p);
      const DecodeJob<T> job{
          p, r.queries(out, b), r.query_numbers(lse, b), shape, mask_differs_by_head(p.mask), state, scratch, *turn};
      job.run(place.first_turn + own, b, own / shape.parts, own % shape.parts, 0);
      return;
    }
    ForwardJob<T> job = tiled_job(p, place);
    job.scratch = scratch;
    const Index tiles = p.query_tiles();
    job.run(b, own / tiles, tiles - 1 - own % tiles, 0);  // late queries first, as for one sequence
  }
};

template <class T>
void run_ragged(RaggedForward<T> job, Context& context) {
  const RaggedProblem<T>& r = job.r;
  if (r.batch == 0) return;
  const auto num_places = static_cast<std::size_t>(job.measure());
  const std::size_t shared_bytes = job.place_bytes + job.state_bytes;
  const ScratchLease scratch =
      borrow_scratch(context, shared_bytes + job.worker_bytes * static_cast<std::size_t>(context.threads()));
  job.places = {scratch.template as<Place>(), num_places};
  job.state = scratch.data() + job.place_bytes;
  job.workers = job.state + job.state_bytes;
  Turn turn{0};
  job.turn = &turn;
  job.deal_out();
  const double flops = static_cast<double>(job.items) * kItemFlops +
                       r.pairs * 2.0 * static_cast<double>(r.shared.head_dim + r.shared.v_head_dim);
  parallel_for_flops(context, job.items, flops, [&job](Index item, int worker) { job.run(item, worker); });
}

template <class T>
void check_weights(const char* function, const RaggedProblem<T>& r, const View<Accumulator<T>, 1>& weights) {
  const Index count = ragged_weights_count(r.offsets, r.shared.num_heads);
  check<ShapeError>(weights.size(0) == count, function, "weights must have H * Tq * Tk numbers for each sequence, ", count,
                    " together: got ", weights);
  check<ShapeError>(weights.stride(0) == 1 || count <= 1, function, "weights must have stride 1: got ", weights.stride(0));
}

template <class T>
void forward(const char* function, const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v,
             const View<T, 3>& out, const View<Accumulator<T>, 2>& lse, const View<Accumulator<T>, 1>* weights,
             WeightsKind kind, const RaggedOffsets& offsets, const AttentionOptions& options, Context& context) {
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context);
  const Problem<T>& shared = r.shared;
  check_tokens(function, "out", out, q.size(0), shared.num_heads, shared.v_head_dim);
  check<ShapeError>(lse.is_null() || lse.sizes() == typename View<float, 2>::Sizes{q.size(0), shared.num_heads}, function,
                    "lse must be [total_q, H] or null: got ", lse, " for out ", out);
  const View<Accumulator<T>, 1> wanted = weights == nullptr ? View<Accumulator<T>, 1>{} : *weights;
  if (weights != nullptr) check_weights(function, r, wanted);
  const NamedBox outputs[] = {{"out", out}, {"lse", lse}, {"weights", wanted}};
  const NamedBox inputs[] = {
      {"q", q}, {"k", k}, {"v", v}, {"bias", shared.bias}, {"sinks", shared.sinks}, {"position_bias", position_table(shared)}};
  check_outputs(function, outputs, inputs);
  run_ragged(RaggedForward<T>{r, out, lse, wanted.data(), kind == WeightsKind::kApplied}, context);
}

template <class T>
void weights(const View<const T, 3>& q, const View<const T, 3>& k, const View<Accumulator<T>, 1>& result,
             const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind, Context& context) {
  constexpr const char* function = "attention_varlen_weights";
  // Values are not read: a width of 1, as attention_weights has it.
  const View<const T, 3> unread(k.data(), {k.size(0), k.size(1), 1}, {k.stride(0), k.stride(1), 1});
  const RaggedProblem<T> r(function, q, k, unread, offsets, options, context);
  check_weights(function, r, result);
  const NamedBox outputs[] = {{"weights", result}};
  const NamedBox inputs[] = {
      {"q", q}, {"k", k}, {"bias", r.shared.bias}, {"sinks", r.shared.sinks}, {"position_bias", position_table(r.shared)}};
  check_outputs(function, outputs, inputs);
  if (result.count() == 0) return;
  run_ragged(RaggedForward<T>{r, {}, {}, result.data(), kind == WeightsKind::kApplied, true}, context);
}

}  // namespace

template <class T>
void plan_ragged_forward(const RaggedProblem<T>& r, AttentionPlan& plan) {
  RaggedForward<T> job{r, {}, {}};
  std::vector<Place> places(static_cast<std::size_t>(job.measure()));
  job.places = places;
  job.deal_out();
  plan.work_items = job.items;
  plan.forward_scratch_bytes = job.worker_bytes;
  plan.forward_shared_bytes = job.place_bytes + job.state_bytes;
  plan.query_tile = r.shared.query_tile;
  plan.key_tile = r.shared.key_tile;
  Index tiled = 0, decoded = 0;
  for (const Place& place : places) {  // those that decode come last
    const Problem<T> p = r.sequence(place.sequence);
    Index key_tile = p.key_tile;
    if (place.decodes) {
      key_tile = decode_shape(p).chunk;
      if (tiled == 0) {
        plan.query_tile = std::max(decoded == 0 ? 0 : plan.query_tile, p.q_len);
        plan.key_tile = key_tile;
      }
      ++decoded;
    } else if (p.num_heads > 0 && p.q_len > 0 && p.kv_len > 0) {
      ++tiled;
    }
    add_tiles(p, place.sequence, key_tile, plan);
  }
  plan.algorithm = tiled == 0 ? decoded == 0 ? "none" : "decode" : decoded == 0 ? "tiled" : "tiled and decode";
  const std::string few = "at most " + std::to_string(kDecodeRowLimit) +
                          " queries (Tq * H/Hkv) to a key/value head and at least " + std::to_string(kDecodeMinKeys) + " keys";
  if (tiled > 0) plan.skipped.push_back("decode: " + std::to_string(tiled) + " sequences do not have " + few);
  if (decoded > 0) plan.skipped.push_back("tiled: " + std::to_string(decoded) + " sequences have " + few);
}

#define QKV_DEFINE(T)                                                                                                         \
  void attention_varlen_forward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<T, 3> out,                   \
                                View<Accumulator<T>, 2> lse, const RaggedOffsets& offsets, const AttentionOptions& options,   \
                                Context& context) {                                                                           \
    forward<T>("attention_varlen_forward", q, k, v, out, lse, nullptr, WeightsKind::kSoftmax, offsets, options, context);     \
  }                                                                                                                           \
  void attention_varlen_forward_with_weights(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<T, 3> out,      \
                                             View<Accumulator<T>, 2> lse, View<Accumulator<T>, 1> result,                     \
                                             const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind, \
                                             Context& context) {                                                              \
    forward<T>("attention_varlen_forward_with_weights", q, k, v, out, lse, &result, kind, offsets, options, context);         \
  }                                                                                                                           \
  void attention_varlen_weights(View<const T, 3> q, View<const T, 3> k, View<Accumulator<T>, 1> result,                       \
                                const RaggedOffsets& offsets, const AttentionOptions& options, WeightsKind kind,              \
                                Context& context) {                                                                           \
    weights<T>(q, k, result, offsets, options, kind, context);                                                                \
  }                                                                                                                           \
  template void plan_ragged_forward(const RaggedProblem<T>&, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
