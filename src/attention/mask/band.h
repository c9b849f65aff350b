// A band of diagonals: causal and window, of a call or of each document.
#pragma once

#include "attention/mask/leaves.h"

namespace qkv::inline v0 {

/// keep(i, j) = low <= j - i <= high
struct Diagonals {
  Index low, high;

  int verdict(const Pairs& t) const {
    const Index smallest = t.j0 - (t.i0 + t.ni - 1), largest = t.j0 + t.nj - 1 - t.i0;  // of j - i over the tile
    if (smallest > high || largest < low) return kTileEmpty;
    return smallest >= low && largest <= high ? kTileFull : kTilePartial;
  }
  /// The lanes of key j that keep.
  std::uint32_t lanes(const Pairs& t, Index j) const {
    const Index from_first = j - t.i0;  // low <= from_first - lane <= high
    return bit_range(from_first - high, from_first - low + 1);
  }
  Positions keys(const Pairs& t) const { return {t.i0 + low, t.i0 + t.ni + high}; }
  Positions queries(const Pairs& t) const { return {t.j0 - high, t.j0 + t.nj - low}; }
};

class Band final : public MaskPart {
 public:
  explicit Band(BandOptions options) : options_(std::move(options)) {}

  const BandOptions& options() const { return options_; }
  /// What it keeps when its diagonal begins at `offset`.
  Diagonals at(Index offset) const;

  int verdict(const Pairs& t) const override { return of(t).verdict(t); }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override;
  Positions keys(const Pairs& t) const override { return of(t).keys(t); }
  Positions queries(const Pairs& t) const override { return of(t).queries(t); }
  std::string text(bool inside) const override;
  void check(const MaskExtent& extent, bool key_lengths, const char* function) const override;
  const char* name() const { return options_.causal ? "causal" : "window"; }

 private:
  Diagonals of(const Pairs& t) const;

  BandOptions options_;
};

}  // namespace qkv::inline v0
