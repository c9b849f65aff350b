#include "attention/plan/schedule.h"

#include <algorithm>

#include "core/threads/region.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

/// Reading a byte takes as long as this many operations if the cache lies in memory.
constexpr double kFlopsPerByte = 6;
constexpr std::size_t kKeptLimitBytes = std::size_t{3} << 19;  // of a thread's 2 MiB

/// Bytes per worker that save a second sweep over the keys; 0 if they would not stay in L2.
std::size_t kept_bytes(const Problem& p, std::size_t kernel_bytes) {
  // Under dropout the numbers that multiply v are not the weights wanted, or not bit-identical to softmax times factor.
  if (p.dropout_threshold != 0) return 0;
  const auto bytes_of = [&](Index lanes) {
    return static_cast<std::size_t>(key_chunks(p) * (p.key_tile + 1) * lanes * p.sum_bytes());
  };
  // A maximum that moves shows in the weights which way they took: with invariant bits the widest vectors decide.
  const std::size_t bytes = p.invariant ? bytes_of(128 / p.sum_bytes()) : bytes_of(p.strip);
  if (p.invariant) kernel_bytes = static_cast<std::size_t>(256 * (p.head_dim + p.v_head_dim));
  return kernel_bytes + bytes <= kKeptLimitBytes ? bytes_of(p.strip) : 0;
}

}  // namespace

void Schedule::make(const Wants& wants, int threads, Block* memory) {
  std::size_t count = 0;
  Index first_weight = 0;
  Block* const all = batch.is_ragged() ? memory : dense_blocks_.data();
  const auto add_block = [&](Index part, const Problem& p, How how, bool rows, bool weights) {
    Block& block = all[count++] = {};
    block.how = how;
    block.rows = rows;
    block.weights = weights;
    block.part = part;
    block.first_weight = first_weight;
    add(block, part, p, wants, threads);
  };
  for (Index n = 0; n < batch.parts(); ++n) {
    const Problem& p = batch.part(n);
    const How how = !wants.rows || wants.carried_keys >= 0 ? How::kTiles : choose(p, lists);
    const bool weights = wants.weights || wants.captures;
    if (how != How::kTiles) add_block(n, p, how, true, false);
    if (how == How::kTiles || weights) add_block(n, p, How::kTiles, how == How::kTiles && wants.rows, weights);
    first_weight += batch.num_sequences() * p.num_heads * p.q_len * p.kv_len;
  }
  blocks = {all, count};
  const auto earlier = [this](const Block& x, const Block& y) {
    if (x.how != y.how) return x.how < y.how;
    const Index x_keys = batch.kv_len(x.part), y_keys = batch.kv_len(y.part);
    return x_keys != y_keys ? x_keys > y_keys : x.part < y.part;
  };
  if (count > 1) std::sort(blocks.begin(), blocks.end(), earlier);
  Index turns = 0;
  for (Block& block : blocks) {
    block.first_item = items;
    block.first_turn = turns;
    items += block.items;
    if (block.merges_in_turn()) turns += block.items;
  }
}

void Schedule::add(Block& block, Index part, const Problem& p, const Wants& wants, int threads) {
  const Index sequences = batch.num_sequences();
  const double width = static_cast<double>(p.head_dim + p.v_head_dim), products = batch.pairs(part) * 2.0 * width;
  std::size_t bytes = 0;
  if (block.how == How::kTiles) {
    block.items = sequences * p.num_heads * p.query_tiles();
    block.kernel_bytes = p.forward_scratch_bytes();
    block.kept_bytes = block.rows && wants.kept_weights ? kept_bytes(p, block.kernel_bytes) : 0;
    bytes = block.kernel_bytes + block.kept_bytes + wants.capture_bytes;
    const double share = wants.carried_keys < 0 || p.kv_len == 0
                             ? 1.0
                             : static_cast<double>(wants.carried_keys) / static_cast<double>(p.kv_len);
    flops += static_cast<double>(block.items) * kItemFlops + products * share;
  } else if (block.how == How::kDecode) {
    block.keys = decode_parts(p, batch.first_sequence(part), sequences);
    block.parts_of_item = 1;
    block.items = sequences * p.num_kv_heads * block.keys.parts;
    bytes = block.keys.scratch_bytes + block.keys.state_bytes;
    const auto live = static_cast<double>(std::min(p.kv_len, block.keys.parts * block.keys.part_keys));
    const double keys = static_cast<double>(sequences * p.num_kv_heads) * live;
    flops += std::max(keys * static_cast<double>(block.keys.rows) * 2.0 * width,
        keys * width * static_cast<double>(p.q.element_bytes()) * kFlopsPerByte);
  } else {
    block.keys = list_parts(p, lists);
    const Index rows = p.batch * lists.blocks() * pieces(block) * p.q_len;
    block.parts_of_item = rows < Index{2} * threads ? 1 : block.keys.parts;
    block.items = rows * block.items_of_rows();
    bytes = block.keys.scratch_bytes + 2 * block.keys.state_bytes + line_bytes<Index>(lists.longest());
    flops += static_cast<double>(rows) * kItemFlops / 16 +
             static_cast<double>(lists.longest() * p.batch * p.num_heads * p.q_len) * 2.0 * width;
  }
  worker_bytes = std::max(worker_bytes, round_to_line(bytes));
  if (block.how != How::kTiles) state_bytes = std::max(state_bytes, round_to_line(block.keys.state_bytes));
}

}  // namespace qkv::inline v0
