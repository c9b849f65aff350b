// One work item per (sequence, head, query tile), or, for few queries, per (sequence, key/value head, part of the keys). Parts
// of the batch with many keys come first; decode parts, whose items are small and merge in turn, come last. A decode part that
// also returns weights or is captured gets extra tiled items for that, so that out keeps its bits.
#include "attention/forward/forward_driver.h"

#include <array>
#include <optional>

#include "attention/forward/decode_job.h"
#include "attention/forward/forward_job.h"
#include "attention/plan/tiles.h"
#include "core/threads/region.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// Reading a byte takes as long as this many operations if the cache lies in memory.
constexpr double kFlopsPerByte = 6;

/// One part of the batch, or its weights alone, in the order in which work items are claimed.
struct ForwardPart {
  Index part, num_items;
  Index first_weight;  // where its weights begin among those of a ragged batch
  bool is_decode, weights_only;
  Index first_item, first_turn;  // among items that merge in turn
  DecodeShape shape;             // of a decode part; otherwise unset
};

template <class T>
struct ForwardDriver {
  using Sum = Accumulator<T>;
  const Batch<T>& batch;
  const AttentionOutputs<T>& outputs;
  CaptureJob<T>* capture;
  bool wants_rows;  // out or lse
  std::array<ForwardPart, 2> dense_parts;
  std::span<ForwardPart> parts{};
  std::optional<ForwardJob<T>> dense_job{};  // shared by all tiled items of a dense batch
  Index num_parts = 0, items = 0;
  double flops = 0;
  std::size_t worker_bytes = 0, state_bytes = 0;
  std::byte *state = nullptr, *workers = nullptr;
  Turn* turn = nullptr;
  Index threads = 1;
  bool fetches = false;  // rows of the next tile

  ForwardDriver(const Batch<T>& whole, const AttentionOutputs<T>& wanted, CaptureJob<T>* look, bool rows)
      : batch(whole), outputs(wanted), capture(look), wants_rows(rows) {}

  View<Sum, 4> weights_of(const Problem<T>& p, const ForwardPart& part) const {
    if (outputs.weights.data() == nullptr || p.kv_len == 0) return {};
    if (!batch.is_ragged()) return outputs.weights;
    return {outputs.weights.data() + part.first_weight,
            {p.batch, p.num_heads, p.q_len, p.kv_len},
            {0, p.q_len * p.kv_len, p.kv_len, 1}};
  }
  ForwardJob<T> tiled_job(const Problem<T>& p, const ForwardPart& part) const {
    const bool weights_only = part.weights_only;
    return {p,
            weights_only ? View<T, 4>{} : batch.queries(outputs.out, part.part),
            weights_only ? View<Sum, 3>{} : batch.query_numbers(outputs.lse, part.part),
            weights_only ? View<Sum, 3>{} : batch.query_numbers(outputs.lse_low, part.part),
            weights_of(p, part),
            static_cast<Weights>(outputs.kind),
            capture};
  }

  /// Orders the parts and numbers their items. With null memory it only counts parts and items and measures scratch.
  void deal_out(ForwardPart* memory) {
    num_parts = items = 0;
    flops = 0;
    Index first_weight = 0;
    for (Index n = 0; n < batch.parts(); ++n) {
      batch.with_part(n, [&](const Problem<T>& p) { add_part(n, p, first_weight, memory); });
    }
    if (memory == nullptr) return;
    parts = {memory, static_cast<std::size_t>(num_parts)};
    const auto earlier = [this](const ForwardPart& x, const ForwardPart& y) {
      if (x.is_decode != y.is_decode) return y.is_decode;
      const Index x_keys = batch.kv_len(x.part), y_keys = batch.kv_len(y.part);
      return x_keys != y_keys ? x_keys > y_keys : x.part < y.part;
    };
    if (num_parts > 1) std::sort(parts.begin(), parts.end(), earlier);
    Index next_item = 0, next_turn = 0;
    for (ForwardPart& part : parts) {
      part.first_item = next_item;
      part.first_turn = next_turn;
      next_item += part.num_items;
      if (part.is_decode && part.shape.parts > 1) next_turn += part.num_items;
    }
  }

  void add_part(Index n, const Problem<T>& p, Index& first_weight, ForwardPart* memory) {
    ForwardPart counted;  // used when there is no memory
    const auto add = [&](Index num_items, bool is_decode, bool weights_only) -> ForwardPart& {
      ForwardPart& part = memory == nullptr ? counted : memory[num_parts];
      part.part = n;
      part.num_items = num_items;
      part.first_weight = first_weight;
      part.is_decode = is_decode;
      part.weights_only = weights_only;
      items += num_items;
      ++num_parts;
      return part;
    };
    const Index sequences = batch.num_sequences(n);
    const double width = static_cast<double>(p.head_dim + p.v_head_dim), products = batch.pairs(n) * 2.0 * width;
    const bool is_decode = wants_rows && decode_suits(p);
    if (is_decode) {
      const DecodeShape shape = decode_shape(p);
      add(sequences * p.num_kv_heads * shape.parts, true, false).shape = shape;
      const double rows = static_cast<double>(sequences * p.num_kv_heads) * static_cast<double>(p.kv_len);
      flops += std::max(products, rows * width * static_cast<double>(sizeof(T)) * kFlopsPerByte);
      worker_bytes = std::max(worker_bytes, round_to_line(shape.worker_bytes()));
      state_bytes = std::max(state_bytes, round_to_line(shape.state_bytes));
    }
    if (!is_decode || outputs.weights.data() != nullptr || capture != nullptr) {
      const Index tiles = sequences * p.num_heads * p.query_tiles();
      const ForwardPart& part = add(tiles, false, is_decode || !wants_rows);
      flops += static_cast<double>(tiles) * kItemFlops + products;
      const ForwardJob<T>& job = dense_job.emplace(tiled_job(p, part));
      worker_bytes = std::max(worker_bytes, round_to_line(job.worker_bytes()));
    }
    first_weight += sequences * p.num_heads * p.q_len * p.kv_len;
  }

  void run(Index item, int worker) const {
    const ForwardPart& part = part_of<ForwardPart>(parts, item);
    std::byte* scratch = workers + static_cast<std::size_t>(worker) * worker_bytes;
    const Index number = item - part.first_item;
    if (!batch.is_ragged() && !part.is_decode) {
      run_tile(part, *dense_job, number, scratch);
      return;
    }
    batch.with_part(part.part, [&](const Problem<T>& p) {
      if (!part.is_decode) {
        run_tile(part, tiled_job(p, part), number, scratch);
        return;
      }
      const DecodeJob<T> job{
          p, batch.queries(outputs.out, part.part), batch.query_numbers(outputs.lse, part.part), part.shape, state, *turn};
      const Index head = number / part.shape.parts, heads = p.num_kv_heads;
      job.run(part.first_turn + number, batch.first_sequence(part.part) + head / heads, head % heads, number % part.shape.parts,
              scratch);
    });
  }

  void run_tile(const ForwardPart& part, const ForwardJob<T>& job, Index number, std::byte* scratch) const {
    const Index tiles = job.p.query_tiles(), heads = job.p.num_heads, first = batch.first_sequence(part.part);
    const auto place = [&](Index n) {  // late queries first: causal makes them cost most
      return typename ForwardJob<T>::Place{first + n / tiles / heads, n / tiles % heads, tiles - 1 - n % tiles};
    };
    const Index later = number + threads;  // workers claim items in turn
    if (fetches && later < part.num_items) {
      const auto next = place(later);
      job.run(place(number), &next, scratch);
    } else {
      job.run(place(number), nullptr, scratch);
    }
  }
};

/// Says why the other algorithm was not chosen.
template <class T>
void add_reasons(const Batch<T>& batch, Index tiled, Index decoded, AttentionPlan& plan) {
  const std::string row_limit = std::to_string(kDecodeRowLimit), key_limit = std::to_string(kDecodeMinKeys);
  if (batch.longest().invariant) {
    plan.skipped.push_back("decode: sums a row otherwise than the tiled kernel, and the bits are to be invariant");
    return;
  }
  if (batch.is_ragged()) {
    const std::string few =
        "at most " + row_limit + " queries (Tq * H/Hkv) to a key/value head and at least " + key_limit + " keys";
    if (tiled > 0) plan.skipped.push_back("decode: " + std::to_string(tiled) + " sequences do not have " + few);
    if (decoded > 0) plan.skipped.push_back("tiled: " + std::to_string(decoded) + " sequences have " + few);
    return;
  }
  const Problem<T>& p = batch.longest();
  const Index rows = p.queries * p.group_size();
  const std::string queries = std::to_string(rows) + " queries (Tq * H/Hkv) to a key/value head";
  if (tiled > 0) {
    const bool many = rows > kDecodeRowLimit;
    plan.skipped.push_back("decode: " + (many ? queries + ", more than " + row_limit
                                              : std::to_string(p.kv_len) + " keys, less than " + key_limit));
  }
  if (decoded > 0) {
    plan.skipped.push_back("tiled: reads K and V once for each query head; here are " + queries + ", decode takes " +
                           row_limit);
  }
}

}  // namespace

template <class T>
void forward_batch(const Batch<T>& batch, const AttentionOutputs<T>& outputs, CaptureJob<T>* capture, Context& context) {
  ForwardDriver<T> driver(batch, outputs, capture, outputs.out.data() != nullptr || outputs.lse.data() != nullptr);
  driver.deal_out(batch.is_ragged() ? nullptr : driver.dense_parts.data());
  if (driver.items == 0) return;
  ForwardPart* order = nullptr;
  std::byte* capture_turns = nullptr;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    const auto take = [&carver](std::size_t bytes) { return carver.take<std::byte>(static_cast<Index>(bytes)); };
    driver.workers = take(driver.worker_bytes * static_cast<std::size_t>(context.threads()));
    driver.state = take(driver.state_bytes);
    if (batch.is_ragged()) order = carver.take<ForwardPart>(driver.num_parts);
    if (capture != nullptr) capture_turns = take(capture->shared_bytes());
    return carver.used();
  };
  const ScratchLease scratch = borrow_scratch(context, carve(nullptr));
  carve(scratch.data());
  if (batch.is_ragged()) driver.deal_out(order);
  if (capture != nullptr) capture->begin(capture_turns);
  Turn turn{0};
  driver.turn = &turn;
  driver.threads = context.threads();
  driver.fetches = !batch.is_ragged() && driver.dense_job && driver.dense_job->fetches();
  parallel_for_flops(context, driver.items, driver.flops, [&driver](Index item, int worker) { driver.run(item, worker); });
}

template <class T>
void plan_forward(const Batch<T>& batch, AttentionPlan& plan) {
  const AttentionOutputs<T> none;
  ForwardDriver<T> driver(batch, none, nullptr, true);
  std::vector<ForwardPart> parts(static_cast<std::size_t>(batch.parts()));
  driver.deal_out(parts.data());
  plan.work_items = driver.items;
  plan.forward_scratch_bytes = driver.worker_bytes;
  plan.forward_shared_bytes = driver.state_bytes + (batch.is_ragged() ? line_bytes<ForwardPart>(driver.num_parts) : 0);
  plan.query_tile = batch.longest().query_tile;
  plan.key_tile = batch.longest().key_tile;
  Index tiled = 0, decoded = 0;
  for (const ForwardPart& part : parts) {  // decode parts come last
    batch.with_part(part.part, [&](const Problem<T>& p) {
      Index key_tile = p.key_tile;
      if (part.is_decode) {
        key_tile = part.shape.chunk;
        if (tiled == 0) {
          plan.query_tile = std::max(decoded == 0 ? 0 : plan.query_tile, p.q_len);
          plan.key_tile = key_tile;
        }
        ++decoded;
      } else if (part.num_items > 0 && p.kv_len > 0) {
        ++tiled;
      }
      const Index first = batch.first_sequence(part.part);
      for (Index b = first; b < first + batch.num_sequences(part.part); ++b) add_tiles(p, b, key_tile, plan);
    });
  }
  plan.algorithm = tiled == 0 ? decoded == 0 ? "none" : "decode" : decoded == 0 ? "tiled" : "tiled and decode";
  add_reasons(batch, tiled, decoded, plan);
}

#define QKV_INSTANTIATE(T)                                                                            \
  template void forward_batch(const Batch<T>&, const AttentionOutputs<T>&, CaptureJob<T>*, Context&); \
  template void plan_forward(const Batch<T>&, AttentionPlan&);
QKV_FOR_EACH_ELEMENT(QKV_INSTANTIATE)
#undef QKV_INSTANTIATE

}  // namespace qkv::inline v0
