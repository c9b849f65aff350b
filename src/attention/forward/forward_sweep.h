// Query tiles that meet the keys of a problem in several calls, by ascending keys: their unnormalised rows between the calls, and
// the work items of each. Not: whose keys arrive, and from where (carried_forward.h).
#pragma once

#include <limits>
#include <vector>

#include "attention/forward/forward_job.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

template <class T>
class ForwardSweep {
 public:
  using Sum = Accumulator<T>;
  /// Queries of a head, counted in the whole problem.
  struct Tile {
    Index b, h;
    Positions queries;
    std::uint32_t by_maximum = 0;  // of a tile of one strip: as CarriedRows has it

    Index count() const { return queries.end - queries.begin; }
  };

  /// Refers to the job, whose p.k and p.v are where row 0 of all keys would lie. `rows`: of the largest tile, whole strips.
  ForwardSweep(const ForwardJob<T>& job, std::vector<Tile> tiles, Index rows, Context& context)
      : job_(job), tiles_(std::move(tiles)), rows_(rows), strips_(rows / job.p.kernels->strip), context_(context) {
    memory_ = borrow_scratch(context, carve(nullptr));
    carve(memory_.data());
    const auto all = static_cast<Index>(tiles_.size());
    std::fill_n(state_.row_max, all * rows_, -std::numeric_limits<Sum>::infinity());
    std::fill_n(state_.row_sum, all * rows_, Sum{0});
    std::fill_n(state_.seen, all * strips_, 0U);
    for (Index n = 0; n < all; ++n) std::fill_n(state_.by_maximum + n * strips_, strips_, tile(n).by_maximum);
  }

  /// All tiles against keys [begin, end).
  void add(Index begin, Index end) {
    run(begin, end, [this](const Tile&, ForwardTile<Sum>& forward, const CarriedRows<Sum>& carried, std::byte* scratch) {
      forward.carried = &carried;
      run_forward(*job_.p.kernels, forward, scratch);
    });
  }

  /// After all keys: take(tile, its ForwardTile, the lanes that CarriedRows calls overflown) for every tile.
  template <class Take>
  void finish(const Take& take) {
    const Index end = job_.p.kv_len;
    run(end, end, [&](const Tile& tile, ForwardTile<Sum>& forward, CarriedRows<Sum> carried, std::byte* scratch) {
      std::uint32_t overflown[kMaxQueryTile] = {};
      Sum row_low[kMaxQueryTile];
      carried.overflown = overflown;
      forward.carried = &carried;
      forward.lse_low = row_low;
      run_forward(*job_.p.kernels, forward, scratch);
      take(tile, forward, static_cast<const std::uint32_t*>(overflown));
    });
  }

 private:
  const Tile& tile(Index n) const { return tiles_[static_cast<std::size_t>(n)]; }

  std::size_t carve(std::byte* base) {
    Carver carver(base);
    const auto all = static_cast<Index>(tiles_.size());
    const bool values = job_.out.data() != nullptr;
    state_.out = carver.take<Sum>(values ? all * rows_ * job_.p.v_head_dim : 0);
    state_.row_max = carver.take<Sum>(all * rows_);
    state_.row_sum = carver.take<Sum>(all * rows_);
    state_.seen = carver.take<std::uint32_t>(all * strips_);
    state_.by_maximum = carver.take<std::uint32_t>(all * strips_);
    return carver.used();
  }
  CarriedRows<Sum> carried(Index n, Index begin, Index end) const {
    return {.k_begin = begin,
            .k_end = end,
            .out = state_.out + n * rows_ * job_.p.v_head_dim,
            .row_max = state_.row_max + n * rows_,
            .row_sum = state_.row_sum + n * rows_,
            .seen = state_.seen + n * strips_,
            .by_maximum = state_.by_maximum + n * strips_,
            .overflown = nullptr};
  }
  template <class Item>
  void run(Index begin, Index end, const Item& item) const {
    const Problem<T>& p = job_.p;
    const auto all = static_cast<Index>(tiles_.size());
    if (all == 0) return;
    const std::size_t bytes = round_to_line(job_.worker_bytes());
    const ScratchLease scratch = borrow_scratch(context_, bytes * static_cast<std::size_t>(context_.threads()));
    const double pairs = static_cast<double>(all * rows_) * static_cast<double>(end - begin);
    const double flops = static_cast<double>(all) * kItemFlops + pairs * 2.0 * static_cast<double>(p.head_dim + p.v_head_dim);
    parallel_for_flops(context_, all, flops, [&](Index number, int worker) {
      const Tile& now = tile(all - 1 - number);  // late queries first: causal makes them cost most
      Sum row_lse[kMaxQueryTile];
      ForwardTile<Sum> forward = job_.tile_of(now.b, now.h, now.queries.begin, now.count(), row_lse, nullptr);
      item(now, forward, carried(all - 1 - number, begin, end), scratch.data() + static_cast<std::size_t>(worker) * bytes);
    });
  }

  const ForwardJob<T>& job_;
  std::vector<Tile> tiles_;
  Index rows_, strips_;
  Context& context_;
  ScratchLease memory_;
  CarriedRows<Sum> state_{};  // of the first tile; the others follow
};

/// All query tiles of a problem.
template <class T>
std::vector<typename ForwardSweep<T>::Tile> all_tiles(const Problem<T>& p) {
  std::vector<typename ForwardSweep<T>::Tile> tiles;
  for (Index b = 0; b < p.batch; ++b) {
    for (Index h = 0; h < p.num_heads; ++h) {
      for (Index t = 0; t < p.query_tiles(); ++t) tiles.push_back({b, h, p.tile(t)});
    }
  }
  return tiles;
}

}  // namespace qkv::inline v0
