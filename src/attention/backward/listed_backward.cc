// A work item is a range of keys of one kv head. It goes through the queries in order: for the heads that share a list,
// the tiled kernel computes the block (a head in each lane, a listed row on each page), and its rows of dk and dv are
// added where they belong. dk and dv belong to one item; dq is added in the order of ranges, a block of queries at a
// time (turns.h). 16-bit gradients are summed in float: there is then one range, with float dk and dv for each worker.
#include <new>

#include "attention/backward/backward_driver.h"
#include "attention/backward/backward_rows.h"
#include "attention/backward/gradient_sums.h"
#include "attention/backward/shared_gradients.h"
#include "attention/plan/listed.h"
#include "core/threads/region.h"
#include "core/threads/turns.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr Index kTurnQueries = 64;
constexpr Index kRangeNumbers = Index{1} << 18;  // of K and V: a range stays in the caches while all queries add to it
constexpr Index kRecentBlocks = 32;              // whose gradients of keys are one chain

template <class Sum> struct ListedBackward {
  const Problem& p;
  const Listed& listed;
  const Gradients& gradients;
  BackwardRows<Sum> rows;
  const Kernels<Sum>& kernels;
  Index range_keys, piece, block_rows;
  Turn* turns = nullptr;  // [B, Hkv, blocks of queries]

  ListedBackward(const Problem& problem, const Listed& lists, const BackwardInputs& inputs, const Gradients& wanted)
      : p(problem),
        listed(lists),
        gradients(wanted),
        rows{p, inputs.out, inputs.lse, inputs.dout, gradients.dlse},
        kernels(p.kernels<Sum>()),
        range_keys(p.rounds() ? p.kv_len : std::max<Index>(kTurnQueries, kRangeNumbers / (p.head_dim + p.v_head_dim))),
        piece(p.backward_keys),
        block_rows(std::min(listed.block_heads(), kernels.query_tile(StoredType::kBF16, p.head_dim, p.v_head_dim))) {}

  Index ranges() const { return (p.kv_len + range_keys - 1) / range_keys; }
  Index query_blocks() const { return (p.q_len + kTurnQueries - 1) / kTurnQueries; }
  Index heads() const { return p.batch * p.num_kv_heads; }

  /// A worker's memory for dk or dv.
  struct KeySums {
    const AnyView& gradient;
    Index width;
    Sum* piece;   // [piece][D or Dv], of the block
    Sum* all;     // 16-bit types: [Tk][D or Dv]
    Sum* recent;  // of the last kRecentBlocks blocks of queries, [keys of a range][D or Dv]; null: there are no more

    bool wanted() const { return gradient.data != nullptr; }
  };
  /// A worker's memory.
  struct Own {
    std::byte* kernel;
    Index *pages, *keys;
    Sum* dq;                            // [block][D]
    Sum *delta, *lse2_high, *lse2_low;  // [block]
    KeySums dk, dv;
    std::size_t bytes;
  };
  Own carve(std::byte* base) const {
    Carver carver(base);
    const auto sums_of = [&](const AnyView& gradient, Index width) {
      Sum* const of_block = carver.array<Sum>(piece * width);
      Sum* const all = carver.array<Sum>(p.rounds() ? p.kv_len * width : 0);
      const bool many = query_blocks() > kRecentBlocks;
      Sum* const recent = carver.array<Sum>(many ? std::min(range_keys, p.kv_len) * width : 0);
      return KeySums{gradient, width, of_block, all, many ? recent : nullptr};
    };
    Own own{.kernel = carver.array<std::byte>(
                static_cast<Index>(std::max({kernels.backward_scratch_bytes(p.head_dim, p.v_head_dim, true),
                    p.forward_scratch_bytes(), p.backward_scratch_bytes()}))),
        .pages = carver.array<Index>(listed.longest()),
        .keys = carver.array<Index>(listed.longest()),
        .dq = carver.array<Sum>(block_rows * p.head_dim),
        .delta = carver.array<Sum>(block_rows),
        .lse2_high = carver.array<Sum>(block_rows),
        .lse2_low = carver.array<Sum>(block_rows),
        .dk = sums_of(gradients.dk, p.head_dim),
        .dv = sums_of(gradients.dv, p.v_head_dim),
        .bytes = 0};
    own.bytes = carver.used();
    return own;
  }

  /// The kernels' rows of queries [i, end) of a key/value head's group.
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
    BackwardTile<Sum> tile = rows.tile(b, h0, {p.first_query + i, p.first_query + i + count});
    tile.keys =
        listed.rows(b, h0, i, range * range_keys, std::min(p.kv_len, (range + 1) * range_keys), own.pages, own.keys);
    tile.scores.mask = {};  // hides none of the listed keys
    const Index listed_keys = tile.scores.kv_len = tile.keys.held.end;
    tile.q.stride = p.q.stride(1);  // rows are heads
    tile.dout.stride = rows.dout.stride(1);
    for (Index r = 0; r < count; ++r) {
      const Index row = rows.first_row(b, h0 + r) + i;
      own.delta[r] = rows.delta[row];
      own.lse2_high[r] = rows.lse2_high[row];
      own.lse2_low[r] = rows.lse2_low[row];
    }
    tile.delta = own.delta;
    tile.lse2_high = own.lse2_high;
    tile.lse2_low = own.lse2_low;
    tile.dq = gradients.dq.data != nullptr ? own.dq : nullptr;
    tile.dk = own.dk.wanted() ? own.dk.piece : nullptr;
    tile.dv = own.dv.wanted() ? own.dv.piece : nullptr;
    tile.dq_stride = tile.dk_stride = p.head_dim;
    tile.dv_stride = p.v_head_dim;
    tile.sets_keys = true;
    if (listed_keys == 0) std::fill_n(own.dq, count * p.head_dim, Sum{0});
    for (tile.k_begin = 0; tile.k_begin < listed_keys; tile.k_begin += piece) {
      tile.k_count = std::min(piece, listed_keys - tile.k_begin);
      tile.sets_dq = tile.k_begin == 0;
      kernels.backward(tile, own.kernel);
      for (const KeySums* to : {&own.dk, &own.dv}) {
        if (to->wanted()) scatter(*to, tile.k_count, own.keys + tile.k_begin, b, h0 / p.group_size(), range);
      }
    }
    if (gradients.dq.data == nullptr) return;
    const bool add = gradients.accumulate || (range > 0 && !p.rounds());
    AnyView dq = gradients.dq;
    dq.data = dq.at(b, h0, i);
    dq.strides[2] = dq.stride(1);
    write_sums<Sum>(p, {own.dq, p.head_dim}, dq, 0, 0, 0, count, add);
  }
  /// Row j is of key j.
  SumRows<Sum> rows_of_keys(const KeySums& sums, Index b, Index g) const {
    return p.rounds() ? SumRows<Sum>{sums.all, sums.width} : rows_of_caller<Sum>(sums.gradient, b, g, 0);
  }
  /// Adds row n of the block's sums to row keys[n] of all.
  void scatter(const KeySums& sums, Index count, const Index* keys, Index b, Index g, Index range) const {
    const Index width = sums.width;
    const SumRows<Sum> to = sums.recent == nullptr ? rows_of_keys(sums, b, g)
                                                   : SumRows<Sum>{sums.recent - range * range_keys * width, width};
    if constexpr (std::is_same_v<Sum, float>) {
      p.tables->attention.layers.scatter({sums.piece, width, keys, to.data, to.stride, count, width});
    } else {
      for (Index n = 0; n < count; ++n) {
        for (Index d = 0; d < width; ++d) to.data[keys[n] * to.stride + d] += sums.piece[n * width + d];
      }
    }
  }

  /// Adds what the last queries gave keys [begin, end), and forgets it: one chain over 10^6 queries would lose digits.
  void flush(const KeySums& sums, Index b, Index g, Index begin, Index end) const {
    const SumRows<Sum> to = rows_of_keys(sums, b, g);
    for (Index j = begin; j < end; ++j) {
      const Sum* const from = sums.recent + (j - begin) * sums.width;
      for (Index d = 0; d < sums.width; ++d) to.data[j * to.stride + d] += from[d];
    }
    std::fill_n(sums.recent, (end - begin) * sums.width, Sum{0});
  }

  void run(Index item, std::byte* memory) const {
    const Own own = carve(memory);
    const Index range = item / heads(), head = item % heads(), b = head / p.num_kv_heads, g = head % p.num_kv_heads;
    const Index begin = range * range_keys, end = std::min(p.kv_len, begin + range_keys);
    for (const KeySums* sums : {&own.dk, &own.dv}) {
      if (p.rounds()) {
        std::fill_n(sums->all, sums->wanted() ? end * sums->width : 0, Sum{0});
      } else if (!gradients.accumulate) {
        zero_rows(sums->gradient, b, g, begin, end - begin);
      }
      if (sums->recent != nullptr) std::fill_n(sums->recent, (end - begin) * sums->width, Sum{0});
    }
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
      if ((block + 1) % kRecentBlocks != 0 && block + 1 != query_blocks()) continue;
      for (const KeySums* sums : {&own.dk, &own.dv}) {
        if (sums->wanted() && sums->recent != nullptr) flush(*sums, b, g, begin, end);
      }
    }
    for (const KeySums* sums : {&own.dk, &own.dv}) {
      if (!p.rounds()) continue;
      write_sums<Sum>(p, {sums->all, sums->width}, sums->gradient, b, g, 0, p.kv_len, gradients.accumulate);
    }
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
    run_items(context, {job.heads() * job.ranges(), flops, job.carve(nullptr).bytes},
        [&](Index item, std::byte* memory) { job.run(item, memory); });
    if (gradients.dsinks.is_null()) return;
    add_sink_gradient(job.rows, 0, p.batch, gradients.dsinks,
        [&](Index row, Index) { return -static_cast<double>(job.rows.delta[row]); });
  });
}

}  // namespace qkv::inline v0
