// The leaf of block-sparse attention: live blocks as compressed sparse rows.
#include "attention/mask/part.h"
#include "core/check.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kMaskBlocks = "Mask::blocks";

/// The live key blocks of one row of blocks, ascending.
struct BlockRow {
  const Index *begin, *end;

  const Index* from(Index column) const { return std::lower_bound(begin, end, column); }
};

class Blocks final : public MaskPart {
 public:
  explicit Blocks(std::shared_ptr<const BlockMap> shared) : shared_(std::move(shared)), map_(*shared_) {
    // Heads differ, and a range must hold for all of them.
    Index first = map_.kv_blocks, last = -1;
    for (const Index column : map_.columns) {
      first = std::min(first, column);
      last = std::max(last, column);
    }
    if (last >= first) hull_ = {first * map_.kv_block, (last + 1) * map_.kv_block};
  }

  int verdict(const Pairs& t) const override {
    const Positions columns = columns_of(t);
    bool any = false, every = true;
    for (Index r = t.i0 / map_.q_block; r <= (t.i0 + t.ni - 1) / map_.q_block; ++r) {
      const BlockRow row = row_of(t, r);
      const Index* first = row.from(columns.begin);
      const Index live = row.from(columns.end) - first;
      any |= live > 0;
      every &= live == columns.end - columns.begin;
    }
    return !any ? kTileEmpty : every ? kTileFull : kTilePartial;
  }

  void fill(const Pairs& t, std::uint32_t* lane_masks) const override {
    const Positions columns = columns_of(t);
    for (Index r = t.i0 / map_.q_block; r <= (t.i0 + t.ni - 1) / map_.q_block; ++r) {
      const std::uint32_t lanes = bit_range(r * map_.q_block - t.i0, (r + 1) * map_.q_block - t.i0);
      const BlockRow row = row_of(t, r);
      Index done = t.j0;
      for (const Index* column = row.from(columns.begin); column != row.end && *column < columns.end; ++column) {
        for (; done < *column * map_.kv_block; ++done) lane_masks[done - t.j0] &= ~lanes;
        done = std::max(done, std::min((*column + 1) * map_.kv_block, t.j0 + t.nj));
      }
      for (; done < t.j0 + t.nj; ++done) lane_masks[done - t.j0] &= ~lanes;
    }
  }

  Positions keys(const Pairs& t) const override {
    if (differs_by_head()) return hull_;
    Positions all{t.extent.kv_len, 0};
    for (Index r = t.i0 / map_.q_block; r <= (t.i0 + t.ni - 1) / map_.q_block; ++r) {
      const BlockRow row = row_of(t, r);
      if (row.begin == row.end) continue;
      all = {std::min(all.begin, *row.begin * map_.kv_block), std::max(all.end, (row.end[-1] + 1) * map_.kv_block)};
    }
    return all;
  }
  Index next_key(const Pairs& from) const override {
    const Index column = from.j0 / map_.kv_block;
    Index next = map_.kv_blocks;
    for (Index r = from.i0 / map_.q_block; r <= (from.i0 + from.ni - 1) / map_.q_block; ++r) {
      const BlockRow row = row_of(from, r);
      const Index* found = row.from(column);
      if (found != row.end) next = std::min(next, *found);
    }
    return next == map_.kv_blocks ? from.extent.kv_len : std::max(from.j0, next * map_.kv_block);
  }

  bool differs_by_head() const override { return map_.num_heads > 1; }
  Cost cost() const override { return Cost::kMemory; }
  std::string text(bool) const override {
    return "blocks[" + std::to_string(map_.q_blocks) + " x " + std::to_string(map_.kv_blocks) + " of " +
           std::to_string(map_.q_block) + " x " + std::to_string(map_.kv_block) + ", " +
           std::to_string(map_.live_blocks()) + " live]";
  }
  void check(const MaskExtent& extent, bool, const char* function) const override {
    const auto covers = [](Index blocks, Index block, Index length) { return blocks == (length + block - 1) / block; };
    qkv::check<ShapeError>(
        covers(map_.q_blocks, map_.q_block, extent.q_len) && covers(map_.kv_blocks, map_.kv_block, extent.kv_len),
        function, "a block map must cover Tq x Tk: got ", map_.q_blocks, " x ", map_.kv_blocks, " blocks of ",
        map_.q_block, " x ", map_.kv_block, " for ", extent.q_len, " x ", extent.kv_len);
    qkv::check<ShapeError>(
        (map_.batch == 1 || map_.batch == extent.batch) && (map_.num_heads == 1 || map_.num_heads == extent.num_heads),
        function, "a block map must be for all sequences and heads or for each: got ", map_.batch, " x ",
        map_.num_heads, " for ", extent.batch, " x ", extent.num_heads);
  }

 private:
  Positions columns_of(const Pairs& t) const { return {t.j0 / map_.kv_block, (t.j0 + t.nj - 1) / map_.kv_block + 1}; }
  BlockRow row_of(const Pairs& t, Index row) const {
    const Index plane = (map_.batch == 1 ? 0 : t.b) * map_.num_heads + (map_.num_heads == 1 ? 0 : t.h);
    const Index* begins = map_.row_begin.data() + plane * map_.q_blocks + row;
    return {map_.columns.data() + begins[0], map_.columns.data() + begins[1]};
  }

  std::shared_ptr<const BlockMap> shared_;
  const BlockMap& map_;
  Positions hull_{0, 0};
};

void check_map(const BlockMap& map) {
  check_block(map.q_block, map.kv_block, kMaskBlocks);
  check<OptionError>(map.q_blocks >= 0 && map.kv_blocks >= 0 && map.batch >= 1 && map.num_heads >= 1, kMaskBlocks,
      "sizes must be counts: got ", map.batch, " x ", map.num_heads, " x ", map.q_blocks, " x ", map.kv_blocks);
  check<OptionError>(map.q_blocks <= kFar / map.q_block && map.kv_blocks <= kFar / map.kv_block, kMaskBlocks,
      "blocks must cover fewer than 2^60 positions: got ", map.q_blocks, " of ", map.q_block, " x ", map.kv_blocks,
      " of ", map.kv_block);
  Index planes = 0, all_rows = 0;
  check<OptionError>(!__builtin_mul_overflow(map.batch, map.num_heads, &planes) &&
                         !__builtin_mul_overflow(planes, map.q_blocks, &all_rows) &&
                         map.row_begin.size() == static_cast<std::size_t>(all_rows) + 1,
      kMaskBlocks, "row_begin must have one value more than there are rows, ", map.batch, " x ", map.num_heads, " x ",
      map.q_blocks, ": got ", map.row_begin.size());
  const auto rows = static_cast<std::size_t>(all_rows);
  check<OptionError>(map.row_begin[0] == 0 && map.row_begin[rows] == map.live_blocks(), kMaskBlocks,
      "row_begin must go from 0 to the number of columns, ", map.live_blocks(), ": got ", map.row_begin[0], "..",
      map.row_begin[rows]);
  for (std::size_t r = 0; r < rows; ++r) {
    const Index begin = map.row_begin[r], end = map.row_begin[r + 1];
    check<OptionError>(begin <= end && end <= map.live_blocks(), kMaskBlocks, "row_begin must ascend: got ", begin,
        ", ", end, " in row ", r);
    for (Index n = begin; n < end; ++n) {
      const Index column = map.columns[static_cast<std::size_t>(n)];
      const Index before = n == begin ? -1 : map.columns[static_cast<std::size_t>(n - 1)];
      check<OptionError>(column >= 0 && column < map.kv_blocks, kMaskBlocks, "a column must be a key block below ",
          map.kv_blocks, ": got ", column, " in row ", r);
      check<OptionError>(
          column > before, kMaskBlocks, "columns must ascend in each row: got ", before, ", ", column, " in row ", r);
    }
  }
}

}  // namespace

void check_block(Index q_block, Index kv_block, const char* function) {
  check<OptionError>(q_block >= 1 && kv_block >= 1 && q_block < kFar && kv_block < kFar, function,
      "blocks must hold at least one query and key, and fewer than 2^60: got ", q_block, " x ", kv_block);
}

Mask Mask::blocks(const BlockMap& map) {
  return blocks(std::shared_ptr<const BlockMap>(std::shared_ptr<const void>(), &map));  // owns nothing
}
Mask Mask::blocks(std::shared_ptr<const BlockMap> map) {
  check<OptionError>(map != nullptr, "Mask::blocks", "the block map must not be null");
  check_map(*map);
  return Mask(Node::of<Blocks>(std::move(map)));
}

}  // namespace qkv::inline v0
