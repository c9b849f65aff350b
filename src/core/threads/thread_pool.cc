// The library's own thread pool: the caller takes unclaimed bodies itself, idle workers spin briefly and then sleep,
// the join yields. So a region never waits for a worker to wake: after idle it costs microseconds, not a scheduler
// tick.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "core/check.h"
#include "core/threads/available_threads.h"
#include "core/threads/fork.h"
#include "qkv/context.h"

namespace qkv::inline v0 {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kIdleSpin = std::chrono::microseconds(25);  // longer than the gap between two regions of one layer
constexpr auto kJoinYield =
    std::chrono::milliseconds(1);  // then the caller sleeps too: its last worker still has real work

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// New threads inherit the mask: an application's signal handlers must not run on ours.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// The threads and the region they work on. One region at a time; the owner keeps others out.
class Team {
 public:
  explicit Team(int helpers) {
    const BlockedSignals blocked;
    try {
      threads_.reserve(static_cast<std::size_t>(helpers));
      for (int n = 0; n < helpers; ++n) threads_.emplace_back([this] { work(); });
    } catch (...) {
      // The system has no more threads to give, or no memory for one: the threads that started (possibly none) and the
      // caller run all bodies.
    }
  }

  ~Team() {
    stopping_.store(true, std::memory_order_relaxed);
    signal_.fetch_add(1);
    signal_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int workers, const std::function<void(int)>& body) {
    body_ = &body;
    workers_ = workers;
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    // The region's number makes every ticket unlike all earlier ones, so a worker that slept through a region claims
    // nothing of it.
    tickets_.store(++region_ << 32 | static_cast<std::uint32_t>(workers), std::memory_order_release);
    signal_.fetch_add(1);
    wake(workers - 1);
    while (claim_and_run()) {
    }
    join();
    body_ = nullptr;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void wake(int helpers) {
    if (helpers >= static_cast<int>(threads_.size())) {
      signal_.notify_all();
    } else {
      for (int n = 0; n < helpers; ++n) signal_.notify_one();
    }
  }

  // A claimed body holds its region open: what run() wrote before the tickets stays valid until finished_ counts it.
  bool claim_and_run() {
    std::uint64_t tickets = tickets_.load(std::memory_order_acquire);
    do {
      if (static_cast<std::uint32_t>(tickets) == 0) return false;
    } while (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acquire));
    const int workers = workers_;
    try {
      (*body_)(workers - static_cast<int>(static_cast<std::uint32_t>(tickets)));
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers) finished_.notify_one();
    return true;
  }

  void join() {
    const auto sleep_at = Clock::now() + kJoinYield;
    for (int done = finished_.load(std::memory_order_acquire); done != workers_;
         done = finished_.load(std::memory_order_acquire)) {
      if (Clock::now() < sleep_at) {
        std::this_thread::yield();
      } else {
        finished_.wait(done, std::memory_order_acquire);
      }
    }
  }

  void work() {
    for (;;) {
      const int before = signal_.load();
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (claim_and_run()) continue;
      const auto sleep_at = Clock::now() + kIdleSpin;
      while (signal_.load(std::memory_order_relaxed) == before && Clock::now() < sleep_at) relax();
      signal_.wait(before);
    }
  }

  alignas(64) std::atomic<std::uint64_t> tickets_{0};  // region number << 32 | bodies that nobody has claimed
  alignas(64) std::atomic<int> finished_{0};
  alignas(64) std::atomic<int> signal_{0};  // changes with every region: what idle workers watch and sleep on
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  const std::function<void(int)>* body_ = nullptr;
  int workers_ = 0;
  std::uint64_t region_ = 0;
  std::vector<std::thread> threads_;
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : threads_(threads) {}

  ~ThreadPool() override { drop_foreign_team(); }

  int concurrency() const override { return threads_; }

  void run(int workers, const std::function<void(int)>& body) override {
    if (workers > 1 && threads_ > 1 && lock_.try_lock()) {
      const RegionUnlock unlock{lock_};
      run_locked(workers, body);
    } else {
      run_alone(workers, body);
    }
  }

 private:
  // In a child of fork the team's threads do not exist: it can be neither used nor joined, only left behind.
  void drop_foreign_team() {
    if (generation_ != fork_generation()) static_cast<void>(team_.release());
  }

  void run_locked(int workers, const std::function<void(int)>& body) {
    drop_foreign_team();
    if (team_ == nullptr) {
      generation_ = fork_generation();
      team_ = std::make_unique<Team>(threads_ - 1);
    }
    team_->run(workers, body);
  }

  // The same guarantee on one thread: every body is called, then the first exception is rethrown.
  static void run_alone(int workers, const std::function<void(int)>& body) {
    std::exception_ptr error;
    for (int n = 0; n < workers; ++n) {
      try {
        body(n);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }

  const int threads_;
  RegionLock lock_;
  std::uint64_t generation_ = 0;
  std::unique_ptr<Team> team_;  // created by the first region, so an unused pool has no threads
};

}  // namespace

Executor::~Executor() = default;

std::shared_ptr<Executor> make_thread_pool(int threads) {
  check<OptionError>(threads >= 1 && threads <= kMaxThreads, "make_thread_pool", "threads must be from 1 to ",
      kMaxThreads, ": got ", threads);
  return std::make_shared<ThreadPool>(threads);
}

}  // namespace qkv::inline v0
