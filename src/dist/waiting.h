// Waiting for messages: without a pause at first, then giving the processor to others; or computing while they are
// under way. Adapters move bytes only inside their calls (transport.h), so a thread polls meanwhile; the rank's own
// thread must not use the transport until the object is finished.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

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

class UnderWay {
 public:
  /// poll() moves messages on and returns whether all have arrived; what it throws, finish() throws.
  explicit UnderWay(std::function<bool()> poll) : poll_(std::move(poll)), thread_([this] { run(); }) {}
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() { stop(); }

  /// Ends the polling, whether or not all have arrived.
  void finish() {
    stop();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run() noexcept {
    // At 10 Gbit/s 100 us are 125 kB, less than a connection's buffers hold; a poll takes a few of them.
    constexpr std::chrono::microseconds pause{100};
    try {
      while (!stop_.load(std::memory_order_relaxed) && !poll_()) std::this_thread::sleep_for(pause);
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::function<bool()> poll_;
  std::exception_ptr error_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace qkv::inline v0::dist
