// State that a child process inherits from fork and must not trust: threads are gone, they may hold locks forever.
// Not: fork from inside a region; such a child may only exec or _exit.
#pragma once

#include <atomic>
#include <cstdint>

namespace qkv::inline v0 {

/// How many forks lie between this process and the one that loaded the library. It costs one load: no system call per
/// region.
std::uint64_t fork_generation();

/// A lock that is only ever tried, and that a child of fork finds free whoever held it in the parent.
class RegionLock {
 public:
  bool try_lock() {
    const std::uint64_t held = fork_generation() * 2 + 1;
    std::uint64_t current = word_.load(std::memory_order_relaxed);
    while (current != held) {
      if (word_.compare_exchange_weak(current, held, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void unlock() { word_.store(fork_generation() * 2, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> word_{0};  // 2 * generation of the last holder, + 1 while held
};

/// Unlocks at its end.
struct RegionUnlock {
  RegionLock& lock;
  ~RegionUnlock() { lock.unlock(); }
};

}  // namespace qkv::inline v0
