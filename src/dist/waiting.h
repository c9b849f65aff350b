// Waiting for messages: without a pause at first, then giving the processor to others.
#pragma once

#include <chrono>
#include <thread>

namespace qkv::inline v0::dist {

/// Calls done() until it returns true.
template <class Done> void wait_until(const Done& done) {
  constexpr int kEager = 200,
                kYielding = 2000;  // polls; then sleep: a rank that waits for a slow one takes no processor
  for (int polls = 0; !done(); ++polls) {
    if (polls >= kYielding) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else if (polls >= kEager) {
      std::this_thread::yield();
    }
  }
}

}  // namespace qkv::inline v0::dist
