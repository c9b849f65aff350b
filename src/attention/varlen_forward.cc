// Forward attention of a ragged batch: the work items of every sequence, tiled or decode as each alone would be, in one region.
// Sequences with many keys come first; those that decode, whose items are small and merge in turn, last.
#include <algorithm>
#include <new>
#include <vector>

#include "attention/decode_job.h"
#include "attention/forward_job.h"
#include "attention/plan.h"
#include "attention/varlen.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/region.h"
#include "core/scratch.h"

namespace qkv {
inline namespace v0 {
namespace {

/// One sequence in the order in which work is dealt out.
struct Place {
  Index sequence, first_item;
  Index first_turn;  // of those items that merge in turn
  bool decodes;
};

template <class T>
struct RaggedForward {
  using Sum = Accumulator<T>;
  const RaggedProblem<T>& r;
  View<T, 3> out;    // [total_q, H, Dv]
  View<Sum, 2> lse;  // [total_q, H]; null: not wanted
  std::span<Place> places{};
  Index items = 0, turns = 0;
  std::size_t kernel_bytes = 0, worker_bytes = 0, state_bytes = 0;
  std::byte *state = nullptr, *workers = nullptr;
  Turn* turn = nullptr;

  /// How much memory the sequences need, whatever their order.
  void measure() {
    kernel_bytes = r.shared.kernels->forward_scratch_bytes(r.shared.head_dim, r.shared.v_head_dim);
    worker_bytes = lines(kernel_bytes);
    for (Index b = 0; b < r.batch; ++b) {
      const Problem<T> p = r.sequence(b);
      if (!decode_suits(p)) continue;
      const DecodeShape shape = decode_shape(p);
      worker_bytes = std::max(worker_bytes, lines(shape.worker_bytes()));
      state_bytes = std::max(state_bytes, lines(shape.state_bytes));
    }
  }

  std::size_t place_bytes() const { return lines(static_cast<std::size_t>(r.batch) * sizeof(Place)); }

  /// Puts the sequences in order and numbers their items.
  void deal_out() {
    for (Index b = 0; b < r.batch; ++b) places[static_cast<std::size_t>(b)] = {b, 0, 0, decode_suits(r.sequence(b))};
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
    const View<T, 4> its_out = r.queries(out, b);
    const View<Sum, 3> its_lse = r.query_numbers(lse, b);
    std::byte* scratch = workers + static_cast<std::size_t>(worker) * worker_bytes;
    if (place.decodes) {
      const DecodeShape shape = decode_shape(p);
      const DecodeJob<T> job{p, its_out, its_lse, shape, decode_mask_differs(p.mask), state, scratch, *turn};
      job.run(place.first_turn + own, b, own / shape.parts, own % shape.parts, 0);
      return;
    }
    const ForwardJob<T> job{.p = p,
                            .out = its_out,
                            .lse = its_lse,
                            .weights = {},
                            .weights_applied = false,
                            .scratch = scratch,
                            .kernel_bytes = kernel_bytes,
                            .scratch_bytes = kernel_bytes};
    const Index tiles = p.query_tiles();
    job.run(b, own / tiles, tiles - 1 - own % tiles, 0);  // late queries first, as for one sequence
  }
};

template <class T>
void forward(const View<const T, 3>& q, const View<const T, 3>& k, const View<const T, 3>& v, const View<T, 3>& out,
             const View<Accumulator<T>, 2>& lse, const RaggedOffsets& offsets, const AttentionOptions& options,
             Context& context) {
  constexpr const char* function = "attention_varlen_forward";
  const RaggedProblem<T> r(function, q, k, v, offsets, options, context);
  const Problem<T>& shared = r.shared;
  check_tokens(function, "out", out, q.size(0), shared.num_heads, shared.v_head_dim);
  check<ShapeError>(lse.is_null() || lse.sizes() == typename View<float, 2>::Sizes{q.size(0), shared.num_heads}, function,
                    "lse must be [total_q, H] or null: got ", lse, " for out ", out);
  const NamedBox outputs[] = {{"out", out}, {"lse", lse}};
  const NamedBox inputs[] = {{"q", q}, {"k", k}, {"v", v}, {"bias", shared.bias}};
  check_outputs(function, outputs, inputs);
  if (r.batch == 0) return;

  RaggedForward<T> job{r, out, lse};
  job.measure();
  const std::size_t shared_bytes = job.place_bytes() + job.state_bytes;
  const ScratchLease scratch =
      borrow_scratch(context, shared_bytes + job.worker_bytes * static_cast<std::size_t>(context.threads()));
  job.places = {scratch.template as<Place>(), static_cast<std::size_t>(r.batch)};
  job.state = scratch.data() + job.place_bytes();
  job.workers = job.state + job.state_bytes;
  Turn turn{0};
  job.turn = &turn;
  job.deal_out();
  const double flops =
      static_cast<double>(job.items) * kItemFlops + r.pairs * 2.0 * static_cast<double>(shared.head_dim + shared.v_head_dim);
  parallel_for_flops(context, job.items, flops, [&job](Index item, int worker) { job.run(item, worker); });
}

}  // namespace

template <class T>
void plan_ragged_forward(const RaggedProblem<T>& r, AttentionPlan& plan) {
  RaggedForward<T> job{r, {}, {}};
  std::vector<Place> places(static_cast<std::size_t>(r.batch));
  job.places = places;
  job.measure();
  job.deal_out();
  plan.work_items = job.items;
  plan.forward_scratch_bytes = job.worker_bytes;
  plan.forward_shared_bytes = job.place_bytes() + job.state_bytes;
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

#define QKV_DEFINE(T)                                                                                                       \
  void attention_varlen_forward(View<const T, 3> q, View<const T, 3> k, View<const T, 3> v, View<T, 3> out,                 \
                                View<Accumulator<T>, 2> lse, const RaggedOffsets& offsets, const AttentionOptions& options, \
                                Context& context) {                                                                         \
    forward<T>(q, k, v, out, lse, offsets, options, context);                                                               \
  }                                                                                                                         \
  template void plan_ragged_forward(const RaggedProblem<T>&, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_DEFINE)
#undef QKV_DEFINE

}  // namespace v0
}  // namespace qkv
