// Leaves decided by differences of positions alone: causal, window, dilated, chunked.
#include "attention/mask/band.h"

#include "core/check.h"

namespace qkv::inline v0 {
namespace {

/// keep = (j - i - offset) % step == 0
class Dilated final : public MaskPart {
 public:
  Dilated(Index step, Align align) : step_(std::min(step, kFar)), align_(align) {}

  int verdict(const Pairs& t) const override {
    if (step_ == 1) return kTileFull;
    const Index smallest = from_first(t, t.j0) - (t.ni - 1), largest = from_first(t, t.j0 + t.nj - 1);
    const Index next = smallest + floor_mod(-smallest, step_);  // the first multiple
    if (next > largest) return kTileEmpty;
    return smallest == largest ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    std::uint32_t every = 0;  // lanes 0, step, 2 step, ...
    for (Index lane = 0; lane < 32; lane += step_) every |= 1U << lane;
    for (Index j = 0; j < t.nj; ++j) {
      const Index first = floor_mod(from_first(t, t.j0 + j), step_);
      lane_masks[j] &= first < 32 ? every << first : 0U;
    }
  }
  std::string text(bool) const override { return "dilated(" + std::to_string(step_) + align_suffix(align_) + ")"; }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_square(function, "dilated", align_, extent.q_len, extent.kv_len);
  }

 private:
  /// j - i - offset for the tile's first query; one less for each lane.
  Index from_first(const Pairs& t, Index j) const {
    return j - t.i0 - alignment_offset(align_, t.extent.q_len, t.extent.kv_len);
  }

  Index step_;
  Align align_;
};

/// keep = floor((i + offset - start) / size) == floor((j - start) / size)
class Chunked final : public MaskPart {
 public:
  Chunked(Index size, Align align, std::vector<Index> starts, bool has_starts)
      : size_(std::min(size, kFar)), align_(align), starts_(std::move(starts)), has_starts_(has_starts) {}

  int verdict(const Pairs& t) const override {
    const Positions q = chunks_of_queries(t), k = chunks(t.j0, t.nj, start(t));
    if (q.begin >= k.end || k.begin >= q.end) return kTileEmpty;
    return q.end - q.begin == 1 && k.end - k.begin == 1 ? kTileFull : kTilePartial;
  }
  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Index first = start(t), to_lane = first - offset(t) - t.i0;
    for (Index j = 0; j < t.nj; ++j) {
      const Index begin = floor_div(t.j0 + j - first, size_) * size_ + to_lane;
      lane_masks[j] &= bit_range(begin, begin + size_);
    }
  }
  Positions keys(const Pairs& t) const override {
    const Positions q = chunks_of_queries(t);
    return {q.begin * size_ + start(t), q.end * size_ + start(t)};
  }
  Positions queries(const Pairs& t) const override {
    const Positions k = chunks(t.j0, t.nj, start(t));
    const Index to_query = start(t) - offset(t);
    return {k.begin * size_ + to_query, k.end * size_ + to_query};
  }
  std::string text(bool) const override {
    return "chunked(" + std::to_string(size_) + (has_starts_ ? ", starts[" + std::to_string(starts_.size()) + "]" : "") +
           align_suffix(align_) + ")";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    check_square(function, "chunked", align_, extent.q_len, extent.kv_len);
    if (has_starts_) check_one_each(function, "chunked(size, starts)", starts_.size(), extent.batch);
    for (Index b = 0; has_starts_ && b < extent.batch; ++b) {
      if (extent.only >= 0 && b != extent.only) continue;
      const Index start = starts_[static_cast<std::size_t>(b)];
      qkv::check<OptionError>(start >= 0 && start <= extent.kv_len, function, "a start of chunks must be in 0..Tk: got ", start,
                              " for Tk ", extent.kv_len);
    }
  }

 private:
  Index start(const Pairs& t) const { return has_starts_ ? starts_[static_cast<std::size_t>(t.b)] : 0; }
  Index offset(const Pairs& t) const { return alignment_offset(align_, t.extent.q_len, t.extent.kv_len); }
  Positions chunks(Index begin, Index count, Index start) const {
    return {floor_div(begin - start, size_), floor_div(begin + count - 1 - start, size_) + 1};
  }
  Positions chunks_of_queries(const Pairs& t) const { return chunks(t.i0 + offset(t), t.ni, start(t)); }

  Index size_;
  Align align_;
  std::vector<Index> starts_;  // [B]
  bool has_starts_;
};

}  // namespace

Diagonals Band::at(Index offset) const {
  Index edge = 0;
  const bool no_low = options_.left < 0 || __builtin_sub_overflow(offset, options_.left, &edge);
  const Index low = no_low ? -kFar : std::clamp(edge, -kFar, kFar);
  const bool no_high = options_.right < 0 || __builtin_add_overflow(offset, options_.right, &edge);
  return {low, no_high ? kFar : std::clamp(edge, -kFar, kFar)};
}

Diagonals Band::of(const Pairs& t) const {
  return at(options_.has_offsets ? options_.offsets[static_cast<std::size_t>(t.b)]
                                 : alignment_offset(options_.align, t.extent.q_len, t.extent.kv_len));
}

void Band::fill(const Pairs& t, std::uint32_t* lane_masks) const {
  const Diagonals d = of(t);
  const Index all_begin = t.i0 + t.ni - 1 + d.low - t.j0, all_end = t.i0 + d.high + 1 - t.j0;  // keys that every lane attends
  const Index before = std::clamp<Index>(all_begin, 0, t.nj), after = std::clamp(all_end, before, t.nj);
  for (Index j = 0; j < before; ++j) lane_masks[j] &= d.lanes(t, t.j0 + j);
  for (Index j = after; j < t.nj; ++j) lane_masks[j] &= d.lanes(t, t.j0 + j);
}

std::string Band::text(bool) const {
  const BandOptions& o = options_;
  std::string place = align_suffix(o.align);
  if (o.has_offsets) place = ", offsets[" + std::to_string(o.offsets.size()) + "]";
  if (o.causal) return "causal(" + (place.empty() ? place : place.substr(2)) + ")";
  return "window(" + std::to_string(o.left) + ", " + std::to_string(o.right) + place + ")";
}

void Band::check(const MaskExtent& extent, bool key_lengths, const char* function) const {
  if (options_.has_offsets) {
    check_one_each(function, options_.causal ? "causal(offsets)" : "window(..., offsets)", options_.offsets.size(),
                   extent.batch);
    return;
  }
  check_square(function, name(), options_.align, extent.q_len, extent.kv_len);
  qkv::check<OptionError>(!(options_.align == Align::kBottomRight && key_lengths && extent.q_len > 1), function, name(),
                          "(Align::kBottomRight) refers to Tk, not to key lengths, and would show the future: use ", name(),
                          "(offsets) with one offset per sequence: got key lengths and Tq ", extent.q_len);
}

MaskPartPtr make_band(BandOptions options) { return std::make_shared<Band>(std::move(options)); }
MaskPartPtr make_dilated(Index step, Align align) { return std::make_shared<Dilated>(step, align); }
MaskPartPtr make_chunked(Index size, Align align, std::vector<Index> starts, bool has_starts) {
  return std::make_shared<Chunked>(size, align, std::move(starts), has_starts);
}

}  // namespace qkv::inline v0
