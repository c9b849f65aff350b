// One lock for the free lists of all contexts. It is held for a few instructions, and while a list grows by one entry,
// but never while a block is allocated or freed. It is also held across fork, so that a child never inherits a
// half-changed list.
#include "core/threads/scratch.h"

#include <pthread.h>

#include <mutex>

#include "core/threads/context_impl.h"
#include "qkv/tensor.h"

namespace qkv::inline v0 {
namespace {

std::mutex& list_mutex() {
  static std::mutex& mutex = [&]() -> std::mutex& {
    static std::mutex* made = new std::mutex;  // never destroyed: a context may outlive every static object
    static_cast<void>(pthread_atfork([] { made->lock(); }, [] { made->unlock(); }, [] { made->unlock(); }));
    return *made;
  }();
  return mutex;
}

constexpr std::size_t kLine = 64;

}  // namespace

ScratchPool::~ScratchPool() { trim(); }

ScratchPool::Block ScratchPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  {
    const std::lock_guard lock(list_mutex());
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->bytes >= bytes && (best == free_.end() || block->bytes < best->bytes)) best = block;
    }
    if (best != free_.end()) {
      const Block block = *best;
      *best = free_.back();
      free_.pop_back();
      return block;
    }
  }
  const std::size_t lines = bytes / kLine + (bytes % kLine != 0 ? 1 : 0);
  Block block{static_cast<std::byte*>(allocate_aligned(static_cast<Index>(lines), kLine)), lines * kLine};
  try {
    const std::lock_guard lock(list_mutex());
    free_.reserve(num_blocks_ + 1);
    ++num_blocks_;
    held_bytes_ += block.bytes;
  } catch (...) {
    free_aligned(block.data);
    throw;
  }
  return block;
}

void ScratchPool::give_back(Block block) noexcept {
  if (block.data == nullptr) return;
  const std::lock_guard lock(list_mutex());
  free_.push_back(block);
}

void ScratchPool::trim() noexcept {
  for (;;) {
    Block unused;
    {
      const std::lock_guard lock(list_mutex());
      if (free_.empty()) return;
      unused = free_.back();
      free_.pop_back();  // keeps the room for what is still borrowed
      --num_blocks_;
      held_bytes_ -= unused.bytes;
    }
    free_aligned(unused.data);
  }
}

std::size_t ScratchPool::held_bytes() const {
  const std::lock_guard lock(list_mutex());
  return held_bytes_;
}

ScratchLease borrow_scratch(Context& context, std::size_t bytes) { return {context.impl().scratch, bytes}; }

}  // namespace qkv::inline v0
