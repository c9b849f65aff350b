// Scratch memory of a Context: blocks that calls borrow and return, so that a repeated call allocates nothing.
// Not: memory that outlives a call. Contents are not cleared.
// For "nothing is allocated after the first call of a shape" borrow once per call, before its region, for all workers
// together: what workers borrow by themselves depends on how they happen to meet.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "qkv/context.h"

namespace qkv::inline v0 {

class QKV_API ScratchPool {
 public:
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  ScratchPool() = default;
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  /// The smallest free block of at least `bytes`, otherwise a new one. Thread-safe. Throws std::bad_alloc.
  Block take(std::size_t bytes);
  void give_back(Block block) noexcept;
  /// Frees all blocks that no call holds. Allocates nothing.
  void trim() noexcept;
  /// Bytes of all blocks, borrowed or free.
  std::size_t held_bytes() const;

 private:
  std::vector<Block> free_;  // capacity >= number of blocks, so returning a block never allocates
  std::size_t num_blocks_ = 0;
  std::size_t held_bytes_ = 0;
};

/// Holds a block until it is destroyed. Move-only. The context must outlive it.
class ScratchLease {
 public:
  ScratchLease() = default;
  ScratchLease(ScratchPool& pool, std::size_t bytes) : pool_(&pool), block_(pool.take(bytes)) {}
  ScratchLease(ScratchLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), block_(std::exchange(other.block_, {})) {}
  ScratchLease& operator=(ScratchLease&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~ScratchLease() {
    if (pool_ != nullptr) pool_->give_back(block_);
  }

  /// 64-byte aligned; null when nothing was borrowed.
  std::byte* data() const { return block_.data; }
  /// At least the requested size.
  std::size_t bytes() const { return block_.bytes; }
  template <class T> T* as() const { return reinterpret_cast<T*>(block_.data); }

 private:
  ScratchPool* pool_ = nullptr;
  ScratchPool::Block block_;
};

/// Scratch of at least `bytes`, 64-byte aligned. 0 bytes borrow nothing.
QKV_API ScratchLease borrow_scratch(Context& context, std::size_t bytes);

}  // namespace qkv::inline v0
