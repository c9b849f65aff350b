// Query tiles that meet the keys of a problem in several calls, by ascending keys: their rows, not yet divided, between the
// calls.
#pragma once

#include <limits>
#include <vector>

#include "attention/forward/forward_driver.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

template <class T>
class SavedRows {
 public:
  using Sum = Accumulator<T>;
  /// Refers to the problem, whose k and v are where row 0 of all keys would lie. Outputs may have no out.
  SavedRows(const Problem<T>& p, const AttentionOutputs<T>& outputs, Context& context)
      : p_(p),
        outputs_(outputs),
        context_(context),
        strips_((p.query_tile + p.kernels->strip - 1) / p.kernels->strip),
        wanted_(static_cast<std::size_t>(p.batch * p.num_heads * p.query_tiles()), 1) {
    memory_ = borrow_scratch(context, carve(nullptr));
    carve(memory_.data());
    std::fill_n(tiles_.rows.by_maximum, tiles() * strips_, 0U);
    begin();
  }
  SavedRows(const SavedRows&) = delete;
  SavedRows& operator=(const SavedRows&) = delete;

  /// Computes only tiles of which wanted(b, h, queries, counted among those that are here) holds.
  template <class Wanted>
  void only(const Wanted& wanted) {
    for (Index n = 0; n < tiles(); ++n) {
      const Index head = n / p_.query_tiles(), begin = n % p_.query_tiles() * p_.query_tile;
      const Positions queries{begin, std::min(begin + p_.query_tile, p_.q_len)};
      wanted_[static_cast<std::size_t>(n)] = wanted(head / p_.num_heads, head % p_.num_heads, queries);
    }
  }
  void add(Index k_begin, Index k_end) { run(k_begin, k_end, nullptr); }
  /// After all keys: writes the outputs. Whether rows overflowed: then their tiles are to meet all keys once more.
  bool finish() {
    std::fill_n(overflown_, tiles() * strips_, 0U);
    run(p_.kv_len, p_.kv_len, overflown_);
    bool any = false;
    for (Index n = 0; n < tiles(); ++n) {
      std::uint8_t again = 0;
      for (Index strip = n * strips_; strip < (n + 1) * strips_; ++strip) {
        again |= overflown_[strip] != 0 ? 1 : 0;
        tiles_.rows.by_maximum[strip] |= overflown_[strip];
      }
      wanted_[static_cast<std::size_t>(n)] = again;
      any |= again != 0;
    }
    begin();
    return any;
  }

 private:
  Index tiles() const { return static_cast<Index>(wanted_.size()); }
  void begin() {
    const Index rows = tiles() * tiles_.tile_rows;
    std::fill_n(tiles_.rows.row_max, rows, -std::numeric_limits<Sum>::infinity());
    std::fill_n(tiles_.rows.row_sum, rows, Sum{0});
    std::fill_n(tiles_.rows.seen, tiles() * strips_, 0U);
  }
  std::size_t carve(std::byte* base) {
    Carver carver(base);
    tiles_.tile_strips = strips_;
    tiles_.tile_rows = strips_ * p_.kernels->strip;
    const Index rows = tiles() * tiles_.tile_rows;
    tiles_.rows.out = carver.take<Sum>(outputs_.out.data() == nullptr ? 0 : rows * p_.v_head_dim);
    tiles_.rows.row_max = carver.take<Sum>(rows);
    tiles_.rows.row_sum = carver.take<Sum>(rows);
    tiles_.rows.seen = carver.take<std::uint32_t>(tiles() * strips_);
    tiles_.rows.by_maximum = carver.take<std::uint32_t>(tiles() * strips_);
    overflown_ = carver.take<std::uint32_t>(tiles() * strips_);
    return carver.used();
  }
  void run(Index k_begin, Index k_end, std::uint32_t* overflown) {
    tiles_.rows.k_begin = k_begin;
    tiles_.rows.k_end = k_end;
    tiles_.rows.overflown = overflown;
    tiles_.wanted = wanted_.data();
    forward_batch<T>(Batch<T>(p_), outputs_, nullptr, context_, &tiles_);
  }

  const Problem<T>& p_;
  AttentionOutputs<T> outputs_;
  Context& context_;
  Index strips_;
  std::vector<std::uint8_t> wanted_;  // [tiles]
  ScratchLease memory_;
  CarriedTiles<T> tiles_{};
  std::uint32_t* overflown_ = nullptr;  // [tiles][strips]
};

}  // namespace qkv::inline v0
