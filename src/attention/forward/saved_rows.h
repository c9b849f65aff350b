// Query tiles that meet the keys of a problem in several calls, by ascending keys: their rows, not yet divided, between
// the calls.
#pragma once

#include <limits>
#include <vector>

#include "attention/forward/forward_driver.h"
#include "core/threads/scratch.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {

class SavedRows {
 public:
  /// Refers to the problem, whose keys are those of the chunk. Outputs may have no out.
  SavedRows(const Problem& p, const Outputs& outputs, Context& context, bool with_totals = false)
      : p_(p),
        with_totals_(with_totals),
        outputs_(outputs),
        context_(context),
        strips_((p.query_tile + p.strip - 1) / p.strip),
        wanted_(static_cast<std::size_t>(p.batch * p.num_heads * p.query_tiles()), 1) {
    with_sums(p_.q.type, [this]<class Sum>(Sum) {
      Carver counter(nullptr);
      carve<Sum>(counter);
      memory_ = borrow_scratch(context_, counter.used());
      std::fill_n(tiles_of<Sum>().rows.by_maximum, tiles() * strips_, 0U);
      begin<Sum>();
    });
  }
  SavedRows(const SavedRows&) = delete;
  SavedRows& operator=(const SavedRows&) = delete;

  /// Computes only tiles of which wanted(b, h, queries, counted among those that are here) holds.
  template <class Wanted> void only(const Wanted& wanted) {
    for (Index n = 0; n < tiles(); ++n) {
      const Index head = n / p_.query_tiles(), begin = n % p_.query_tiles() * p_.query_tile;
      const Positions queries{begin, std::min(begin + p_.query_tile, p_.q_len)};
      wanted_[static_cast<std::size_t>(n)] = wanted(head / p_.num_heads, head % p_.num_heads, queries);
    }
  }
  void add(Index k_begin, Index k_end) {
    with_sums(p_.q.type, [&]<class Sum>(Sum) { run<Sum>(k_begin, k_end, nullptr); });
  }
  /// After all keys: writes the outputs. Whether rows overflowed: then their tiles are to meet all keys once more.
  bool finish() {
    return with_sums(p_.q.type, [this]<class Sum>(Sum) { return finish_sums<Sum>(); });
  }
  /// After finish, where totals are wanted: the maximum, in powers of two, and the sum of row i, counted here.
  template <class Sum> std::pair<Sum, Sum> totals(Index b, Index h, Index i) {
    const CarriedTiles<Sum> saved = tiles_of<Sum>();
    const Index tile = (b * p_.num_heads + h) * p_.query_tiles() + i / p_.query_tile;
    const Index row = tile * saved.tile_rows + i % p_.query_tile;
    return {saved.total_max[row], saved.total_sum[row]};
  }

 private:
  Index tiles() const { return static_cast<Index>(wanted_.size()); }
  template <class Sum> CarriedTiles<Sum> carve(Carver& carver) {
    CarriedTiles<Sum> made{};
    made.wanted = wanted_.data();
    made.tile_strips = strips_;
    made.tile_rows = strips_ * p_.strip;
    const Index rows = tiles() * made.tile_rows;
    made.rows.out = carver.array<Sum>(outputs_.out.data == nullptr ? 0 : rows * p_.v_head_dim);
    made.rows.row_max = carver.array<Sum>(rows);
    made.rows.row_sum = carver.array<Sum>(rows);
    made.rows.attended = carver.array<std::uint32_t>(tiles() * strips_);
    made.rows.by_maximum = carver.array<std::uint32_t>(tiles() * strips_);
    overflown_ = carver.array<std::uint32_t>(tiles() * strips_);
    if (with_totals_) {
      made.total_max = carver.array<Sum>(rows);
      made.total_sum = carver.array<Sum>(rows);
    }
    return made;
  }
  template <class Sum> CarriedTiles<Sum> tiles_of() {
    Carver carver(memory_.data());
    return carve<Sum>(carver);
  }
  template <class Sum> void begin() {
    const CarriedTiles<Sum> saved = tiles_of<Sum>();
    std::fill_n(saved.rows.row_max, tiles() * saved.tile_rows, -std::numeric_limits<Sum>::infinity());
    std::fill_n(saved.rows.row_sum, tiles() * saved.tile_rows, Sum{0});
    std::fill_n(saved.rows.attended, tiles() * strips_, 0U);
  }
  template <class Sum> bool finish_sums() {
    std::uint32_t* const by_maximum = tiles_of<Sum>().rows.by_maximum;
    std::fill_n(overflown_, tiles() * strips_, 0U);
    run<Sum>(p_.kv_len, p_.kv_len, overflown_);
    bool any = false;
    for (Index n = 0; n < tiles(); ++n) {
      std::uint8_t again = 0;
      for (Index strip = n * strips_; strip < (n + 1) * strips_; ++strip) {
        again |= overflown_[strip] != 0 ? 1 : 0;
        // Not the lanes that left the fast path later: undivided, they take it again.
        by_maximum[strip] = overflown_[strip];
      }
      wanted_[static_cast<std::size_t>(n)] = again;
      any |= again != 0;
    }
    begin<Sum>();
    return any;
  }
  template <class Sum> void run(Index k_begin, Index k_end, std::uint32_t* overflown) {
    CarriedTiles<Sum> saved = tiles_of<Sum>();
    saved.rows.k_begin = k_begin;
    saved.rows.k_end = k_end;
    saved.rows.overflown = overflown;
    forward_batch<Sum>(Batch(p_), outputs_, nullptr, context_, &saved);
  }

  const Problem& p_;
  bool with_totals_;
  Outputs outputs_;
  Context& context_;
  Index strips_;
  std::vector<std::uint8_t> wanted_;  // [tiles]
  ScratchLease memory_;
  std::uint32_t* overflown_ = nullptr;  // [tiles][strips]
};

}  // namespace qkv::inline v0
