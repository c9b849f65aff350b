// A work item is a range of keys of one kv head. It goes through the queries in order: for the heads that share a list,
// the listed rows of K and V are copied as rows of sums, the tiled kernel computes the block (a head in each lane), and
// its rows of dk and dv are added where they belong. dk and dv belong to one item; dq is added in the order of ranges,
// a block of queries at a time (turns.h). 16-bit gradients are summed in float: there is then one range, with float dk
// and dv for each worker.
#include <new>

#include "attention/backward/backward_job.h"
#include "attention/backward/shared_gradients.h"
#include "attention/plan/listed.h"
#include "core/threads/region.h"
#include "core/threads/turns.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kTurnQueries = 64;
constexpr Index kRangeNumbers = Index{1} << 18;  // of K and V: a range stays in the caches while all queries add to it

template <class Sum> struct ListedBackward {
  const Problem& p;
  const Listed& listed;
  const Gradients& gradients;
  BackwardRows<Sum> rows;
  const Kernels<Sum>& kernels;
  const CacheTable& cache;
  const LayerKernels& layers;
  Index range_keys, piece, block_rows;
  Turn* turns = nullptr;  // [B, Hkv, blocks of queries]

  ListedBackward(const Problem& problem, const Listed& lists, const BackwardInputs& inputs, const Gradients& wanted)
      : p(problem),
        listed(lists),
        gradients(wanted),
        rows{p, inputs.out, inputs.lse, inputs.dout, gradients.dlse},
        kernels(p.kernels<Sum>()),
        cache(p.tables->cache),
        layers(p.tables->attention.layers),
        range_keys(p.rounds() ? p.kv_len : std::max<Index>(kTurnQueries, kRangeNumbers / (p.head_dim + p.v_head_dim))),
        piece(p.backward_keys),
        block_rows(std::min(listed.block_heads(), kernels.query_tile(stored_as<Sum>(), p.head_dim, p.v_head_dim))) {}

  Index ranges() const { return (p.kv_len + range_keys - 1) / range_keys; }
  Index query_blocks() const { return (p.q_len + kTurnQueries - 1) / kTurnQueries; }
  Index heads() const { return p.batch * p.num_kv_heads; }

  /// dk or dv.
  struct KeyGradient {
    const AnyView& rounded;
    const AnyView& sums;  // before they are rounded; f32 and f64 have them in `rounded`
    Index width;

    bool wanted() const { return rounded.data != nullptr || sums.data != nullptr; }
  };
  KeyGradient dk() const { return {gradients.dk, gradients.dk_sums, p.head_dim}; }
  KeyGradient dv() const { return {gradients.dv, gradients.dv_sums, p.v_head_dim}; }

  /// A worker's memory.
  struct Own {
    std::byte* kernel;
    Index *pages, *keys;
    Sum *k, *v, *dk, *dv;               // [piece][D or Dv]
    Sum *q, *dout, *dq;                 // [block][D or Dv]
    Sum *delta, *lse2_high, *lse2_low;  // [block]
    Sum *all_dk, *all_dv;               // 16-bit types: [Tk][D or Dv]
  };
  std::size_t carve(std::byte* base, Own& own) const {
    Carver carver(base);
    const Index d = p.head_dim, dv = p.v_head_dim;
    own.kernel = carver.array<std::byte>(static_cast<Index>(std::max(
        {kernels.backward_scratch_bytes(d, dv, false), p.forward_scratch_bytes(), p.backward_scratch_bytes()})));
    own.pages = carver.array<Index>(listed.longest());
    own.keys = carver.array<Index>(listed.longest());
    own.k = carver.array<Sum>(piece * d);
    own.v = carver.array<Sum>(piece * dv);
    own.dk = carver.array<Sum>(piece * d);
    own.dv = carver.array<Sum>(piece * dv);
    own.q = carver.array<Sum>(block_rows * d);
    own.dout = carver.array<Sum>(block_rows * dv);
    own.dq = carver.array<Sum>(block_rows * d);
    own.delta = carver.array<Sum>(3 * block_rows);
    own.lse2_high = own.delta + block_rows;
    own.lse2_low = own.lse2_high + block_rows;
    own.all_dk = carver.array<Sum>(p.rounds() ? p.kv_len * d : 0);
    own.all_dv = carver.array<Sum>(p.rounds() ? p.kv_len * dv : 0);
    return carver.used();
  }

  /// Heads [h0, h0 + count) of query i of sequence b as rows of sums.
  void read_heads(const AnyView& x, Index b, Index h0, Index i, Index count, Sum* to) const {
    HeadKeys head{};
    head.type = x.type;
    head.num_pages = 1;
    head.page_rows = head.held.end = count;
    cache.read(head, {x.at(b, h0, i), nullptr, 0, x.stride(1), 0}, 0, count, x.size(3), to);
  }

  /// What kernels need of queries [i, end) of a key/value head's group.
  void prepare(Index b, Index g, Index i, Index end, std::byte* kernel) const {
    const Index most = std::min(kTurnQueries, p.query_tile);
    for (Index h = g * p.group_size(); h < (g + 1) * p.group_size(); ++h) {
      for (Index begin = p.first_query + i, last = p.first_query + end; begin < last; begin += most) {
        rows.prepare(rows.tile(b, h, {begin, std::min(begin + most, last)}), b, h, kernel);
      }
    }
  }

  /// Heads [h0, h0 + count), which share a list, of query i.
  void run_query(Index b, Index h0, Index count, Index i, Index range, const Own& own) const {
    const Index g = h0 / p.group_size();
    const HeadKeys head =
        listed.rows(b, h0, i, range * range_keys, std::min(p.kv_len, (range + 1) * range_keys), own.pages, own.keys);
    read_heads(p.q, b, h0, i, count, own.q);
    read_heads(rows.dout, b, h0, i, count, own.dout);
    for (Index r = 0; r < count; ++r) {
      const Index row = rows.first_row(b, h0 + r) + i;
      own.delta[r] = rows.delta[row];
      own.lse2_high[r] = rows.lse2_high[row];
      own.lse2_low[r] = rows.lse2_low[row];
    }
    if (head.held.end == 0) std::fill_n(own.dq, count * p.head_dim, Sum{0});
    for (Index begin = 0; begin < head.held.end; begin += piece) {
      const Index keys = std::min(piece, head.held.end - begin);
      cache.read(head, head.k, begin, keys, p.head_dim, own.k);
      cache.read(head, head.v, begin, keys, p.v_head_dim, own.v);
      run_kernel(b, h0, count, keys, begin == 0, own);
      if (dk().wanted()) scatter(own.dk, p.head_dim, keys, own.keys + begin, key_sums(dk(), b, g, own.all_dk));
      if (dv().wanted()) scatter(own.dv, p.v_head_dim, keys, own.keys + begin, key_sums(dv(), b, g, own.all_dv));
    }
    if (gradients.dq.data == nullptr) return;
    const bool add = gradients.accumulate || (range > 0 && !p.rounds());
    AnyView dq = gradients.dq;  // rows are heads
    dq.data = dq.at(b, h0, i);
    dq.strides[2] = dq.stride(1);
    write_sums<Sum>(p, {own.dq, p.head_dim}, dq, 0, 0, 0, count, add);
  }
  void run_kernel(Index b, Index h0, Index count, Index keys, bool first, const Own& own) const {
    BackwardTile<Sum> tile{};
    tile.scores = p.scores<Sum>(b, h0);
    tile.scores.mask = {};
    tile.scores.kv_len = keys;
    constexpr StoredType own_type = stored_as<Sum>();
    tile.q = {reinterpret_cast<std::byte*>(own.q), own_type, p.head_dim};
    tile.dout = {reinterpret_cast<std::byte*>(own.dout), own_type, p.v_head_dim};
    tile.keys = {own_type, {own.k, nullptr, 0, p.head_dim, 0}, {own.v, nullptr, 0, p.v_head_dim, 0}, nullptr, 1, keys,
        {}, {0, keys}};
    tile.lse2_high = own.lse2_high;
    tile.lse2_low = own.lse2_low;
    tile.delta = own.delta;
    tile.v_head_dim = p.v_head_dim;
    tile.q_count = count;
    tile.k_count = keys;
    tile.dq = gradients.dq.data != nullptr ? own.dq : nullptr;
    tile.dk = dk().wanted() ? own.dk : nullptr;
    tile.dv = dv().wanted() ? own.dv : nullptr;
    tile.dq_stride = tile.dk_stride = p.head_dim;
    tile.dv_stride = p.v_head_dim;
    tile.sets_dq = first;
    tile.sets_keys = true;
    kernels.backward(tile, own.kernel);
  }
  /// Where dk or dv of a head is summed.
  SumRows<Sum> key_sums(const KeyGradient& gradient, Index b, Index g, Sum* sums) const {
    return p.rounds() ? SumRows<Sum>{sums, gradient.width} : rows_of_caller<Sum>(gradient.rounded, b, g, 0);
  }
  /// Row keys[n] of `to` += row n of `from`.
  void scatter(const Sum* from, Index width, Index count, const Index* keys, const SumRows<Sum>& to) const {
    if constexpr (std::is_same_v<Sum, float>) {
      layers.scatter({from, width, keys, to.data, to.stride, count, width});
    } else {
      for (Index n = 0; n < count; ++n) {
        for (Index d = 0; d < width; ++d) to.data[keys[n] * to.stride + d] += from[n * width + d];
      }
    }
  }

  /// Before anything is added to the keys of a range.
  void begin_keys(const KeyGradient& gradient, Index b, Index g, Index begin, Index end, Sum* sums) const {
    if (!gradient.wanted()) return;
    if (p.rounds()) {
      std::fill_n(sums, end * gradient.width, Sum{0});
    } else if (!gradients.accumulate) {
      zero_rows(gradient.rounded, b, g, begin, end - begin);
    }
  }
  /// After the last query: all keys of a head, whose sums are in scratch.
  void end_keys(const KeyGradient& gradient, Index b, Index g, Sum* sums) const {
    for (const AnyView* to : {&gradient.rounded, &gradient.sums}) {
      write_sums<Sum>(p, {sums, gradient.width}, *to, b, g, 0, p.kv_len, gradients.accumulate);
    }
  }

  void run(Index item, const Own& own) const {
    const Index range = item / heads(), head = item % heads(), b = head / p.num_kv_heads, g = head % p.num_kv_heads;
    const Index begin = range * range_keys, end = std::min(p.kv_len, begin + range_keys);
    begin_keys(dk(), b, g, begin, end, own.all_dk);
    begin_keys(dv(), b, g, begin, end, own.all_dv);
    for (Index block = 0; block < query_blocks(); ++block) {
      Turn& turn = turns[head * query_blocks() + block];
      const Index first_query = block * kTurnQueries, last = std::min(p.q_len, first_query + kTurnQueries);
      wait_for_turn(turn, range);
      if (range == 0) prepare(b, g, first_query, last, own.kernel);
      for (Index i = first_query; i < last; ++i) {
        for (Index first = g * p.group_size(); first < (g + 1) * p.group_size(); first += listed.block_heads()) {
          for (Index h0 = first; h0 < first + listed.block_heads(); h0 += block_rows) {
            run_query(b, h0, std::min(block_rows, first + listed.block_heads() - h0), i, range, own);
          }
        }
      }
      pass_turn(turn, range);
    }
    if (!p.rounds()) return;
    end_keys(dk(), b, g, own.all_dk);
    end_keys(dv(), b, g, own.all_dv);
  }
};

}  // namespace

void backward_dense(const Problem& p, const BackwardInputs& inputs, const Gradients& gradients, Context& context) {
  const Listed listed(p);
  if (!listed.applies_backward()) return backward_batch(Batch(p), inputs, gradients, context);
  with_sums(p.q.type, [&]<class Sum>(Sum) {
    ListedBackward<Sum> job(p, listed, inputs, gradients);
    if (!gradients.accumulate) zero_all(gradients.dsinks);
    const Index rows = p.batch * p.num_heads * p.q_len, num_turns = job.heads() * job.query_blocks();
    typename ListedBackward<Sum>::Own own{};
    const std::size_t own_bytes = job.carve(nullptr, own);
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      job.rows.delta = carver.array<Sum>(3 * rows);
      job.rows.lse2_high = job.rows.delta + rows;
      job.rows.lse2_low = job.rows.lse2_high + rows;
      job.turns = carver.array<Turn>(num_turns);
      return carver.used();
    };
    const ScratchLease scratch = borrow_scratch(context, carve(nullptr));
    carve(scratch.data());
    for (Index t = 0; t < num_turns; ++t) new (&job.turns[t]) Turn(0);
    const double flops =
        static_cast<double>(listed.longest() * rows) * 2.0 * static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim);
    run_items(context, {job.heads() * job.ranges(), flops, own_bytes}, [&](Index item, std::byte* memory) {
      typename ListedBackward<Sum>::Own of_worker{};
      job.carve(memory, of_worker);
      job.run(item, of_worker);
    });
    if (gradients.dsinks.is_null()) return;
    add_sink_gradient(job.rows, 0, p.batch, gradients.dsinks,
        [&](Index row, Index) { return -static_cast<double>(job.rows.delta[row]); });
  });
}

}  // namespace qkv::inline v0
