// The work of a forward call, before it runs: blocks of items, in which arithmetic numbers them, and their scratch.
// forward_driver.cc runs it, attention_plan prints it.
//   tiles   (sequence, head, query tile)
//   decode  (sequence, key/value head, part of the keys)
//   lists   (sequence, heads that share a list, query), or a part of its keys where there are fewer items than threads
// Blocks of tiles with many keys come first; decode's, whose items are small and merge in turn, come last. Where tiles
// do not compute out, weights and captures have a block of tiles of their own, so that out keeps its bits.
#pragma once

#include <array>
#include <span>

#include "attention/call/batch.h"
#include "attention/plan/choose.h"

namespace qkv::inline v0 {

/// A call, as far as its work depends on it.
struct Wants {
  bool rows = true;  // out or lse
  bool weights = false, captures = false;
  bool kept_weights = false;      // weights beside out that may keep the exponentials of one sweep
  std::size_t capture_bytes = 0;  // per worker
  Index carried_keys = -1;        // of a call on some of the keys, which tiles compute; -1: all keys are here
};

/// Items of one part of the batch, or its weights alone, in the order in which they are claimed.
struct Block {
  How how;
  bool rows, weights;  // whether it gives out and lse, and whether weights and captures
  Index part, items, first_item;
  Index first_weight;  // where its weights begin among those of a ragged batch
  Index first_turn,
      parts_of_item;  // decode, lists: among items that merge in turn; how many parts of the keys one takes
  KeyParts keys;      // decode, lists
  std::size_t kernel_bytes, kept_bytes;  // tiles, per worker: the kernel's, and of exponentials kept for weights

  bool merges_in_turn() const { return how != How::kTiles && keys.parts > parts_of_item; }
  /// Items that share the rows of one.
  Index items_of_rows() const { return keys.parts / parts_of_item; }
};

struct Schedule {
  const Batch& batch;
  Listed lists;  // of a dense batch
  std::span<Block> blocks{};
  Index items = 0;
  double flops = 0;
  std::size_t worker_bytes = 0, state_bytes = 0;  // per worker; of rows whose parts are being merged, shared

  explicit Schedule(const Batch& whole) : batch(whole), lists(whole.longest()) {}
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Room for the blocks of a ragged batch.
  Index most_blocks(const Wants& wants) const {
    return batch.is_ragged() ? batch.parts() * (wants.weights || wants.captures ? 2 : 1) : 0;
  }
  /// memory: [most_blocks()].
  void make(const Wants& wants, int threads, Block* memory);
  /// The heads that share a list are cut into pieces.
  Index pieces(const Block& block) const { return (lists.block_heads() + block.keys.rows - 1) / block.keys.rows; }

 private:
  void add(Block& block, Index part, const Problem& p, const Wants& wants, int threads);

  std::array<Block, 2> dense_blocks_;
};

/// Chunks of keys, each of which keeps its exponentials where weights are asked for.
inline Index key_chunks(const Problem& p) { return (p.kv_len + p.key_tile - 1) / p.key_tile; }

}  // namespace qkv::inline v0
