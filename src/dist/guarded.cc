// The guard's thread owns `control`: it sends heartbeats, hears those of the others, and writes one text when a rank is
// gone. The owner's thread reads a flag.
#include "qkv/dist/guarded.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "core/check.h"

namespace qkv::inline v0::dist {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

enum class State : std::uint32_t { kAlive = 1, kDone = 2, kFailed = 3 };

/// A message of the control transport.
struct Sign {
  State state = State::kAlive;
  std::array<char, 252> text{};  // of kFailed, ends with 0
};
static_assert(sizeof(Sign) == 256);

/// Another rank, as the guard's thread knows it.
struct Peer {
  int rank = 0;
  Sign in, out;
  std::optional<Ticket> receiving, sending;  // under way
  bool done = false;                         // it has said so: nothing more comes
  Clock::time_point heard;
};

}  // namespace

struct Guarded::Impl {
  Impl(Transport& data_transport, Transport& control_transport, GuardOptions options)
      : data(data_transport), control(control_transport), timeout(options.timeout) {
    for (int rank = 0; rank < data.size(); ++rank) {
      if (rank != data.rank()) peers.emplace_back().rank = rank;
    }
  }

  void start() {
    if (!peers.empty()) thread = std::thread([this] { run(); });
  }

  /// Ends the thread in one way or another; returns when it has ended.
  void end(State how, const std::string& text) {
    {
      const std::lock_guard lock(mutex);
      if (wish == State::kAlive) wish = how;
      reason = text;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void fail(std::string_view cause) noexcept {
    if (ended) return;
    ended = true;
    try {
      const std::string text = "[Guarded] every rank must work to the end: rank " + std::to_string(data.rank()) +
                               " of " + std::to_string(data.size()) + " has ended: " + std::string(cause);
      end(State::kFailed, text);
      if (!broken) error = text;
    } catch (const std::exception&) {
      end(State::kFailed, "out of memory");  // so short that it takes none
    }
    broken = true;
  }

  void require_whole() const {
    if (broken) throw TransportError(error);
  }

  /// One call of the data transport. The others hear what breaks it before the exception frees the bytes of other
  /// operations.
  template <class Call> auto guarded(Guarded& owner, const Call& call) {
    require_whole();
    try {
      return call();
    } catch (const TransportError& problem) {
      owner.fail(problem.what());
      throw;
    }
  }

  /// The thread. The owner hears of a failure when the thread has told the others and has ended: from then on nobody
  /// calls an adapter, which could write what still arrives into memory that the owner's exception has freed.
  void run() {
    try {
      watch();
    } catch (const std::exception& problem) {
      if (error.empty()) error = problem.what();
    }
    if (!error.empty()) broken = true;
  }

  /// Until every rank is done, or has failed and has been told why, or a short time after: who cannot be told hears
  /// nothing more, which says the same.
  void watch() {
    auto last = Clock::now(), next_sign = last;
    std::optional<Clock::time_point> until;
    for (Peer& peer : peers) {
      peer.heard = last;
      listen(peer);
    }
    while (true) {
      const State now_wished = wished();
      Sign mine{error.empty() ? now_wished : State::kFailed, {}};
      const auto now = Clock::now();
      if (mine.state == State::kFailed) {
        (error.empty() ? reason : error).copy(mine.text.data(), mine.text.size() - 1);
        if (!until)
          until = now + std::chrono::duration_cast<Clock::duration>(std::min(Seconds(timeout / 8), Seconds(0.5)));
      }
      // A process that was stopped itself has heard nobody: that is not their fault.
      if (now - last > timeout / 2) {
        for (Peer& peer : peers) peer.heard = now;
      }
      last = now;
      const bool due = now >= next_sign;
      if (due) next_sign = now + std::chrono::duration_cast<Clock::duration>(timeout / 8);
      bool all = mine.state != State::kAlive;
      for (Peer& peer : peers) {
        if (mine.state != State::kFailed) hear(peer, now);
        if (sent(peer) && (mine.state == State::kAlive ? due : peer.out.state != mine.state)) send(peer, mine);
        all = all && peer.out.state == mine.state && !peer.sending && (peer.done || mine.state == State::kFailed);
      }
      if (all || (until && now >= *until)) return;
      if (error.empty() || until) sleep(now_wished);
    }
  }

  State wished() {
    const std::lock_guard lock(mutex);
    return wish;
  }

  /// A wish that comes wakes the thread; signs that come do not, so it asks for them.
  void sleep(State now_wished) {
    const bool watches = now_wished == State::kAlive && error.empty();
    const Seconds pause = watches ? std::min(Seconds(timeout / 32), Seconds(0.02)) : Seconds(0.001);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, pause, [&] { return wish != now_wished; });
  }

  void listen(Peer& peer) {
    peer.receiving = control.receive(peer.rank, std::as_writable_bytes(std::span(&peer.in, 1)));
  }

  void hear(Peer& peer, Clock::time_point now) {
    while (peer.receiving && control.poll(*peer.receiving)) {
      peer.receiving.reset();
      peer.heard = now;
      if (peer.in.state == State::kFailed) {
        peer.in.text.back() = 0;
        error = peer.in.text.data();
        return;
      }
      peer.done = peer.in.state == State::kDone;
      if (!peer.done) listen(peer);
    }
    if (!peer.done && now - peer.heard > timeout) {
      error = "[Guarded] every rank must send a heartbeat within " + number_text(timeout.count()) +
              " s (--timeout): rank " + std::to_string(peer.rank) + " of " + std::to_string(data.size()) +
              " has ended, is stopped, or its connection is cut";
    }
  }

  /// Whether no sign is on its way to it.
  bool sent(Peer& peer) {
    if (peer.sending && control.poll(*peer.sending)) peer.sending.reset();
    return !peer.sending;
  }
  void send(Peer& peer, const Sign& sign) {
    peer.out = sign;
    peer.sending = control.send(peer.rank, std::as_bytes(std::span(&peer.out, 1)));
    sent(peer);
  }

  Transport& data;
  Transport& control;
  const Seconds timeout;
  std::vector<Peer> peers;
  std::atomic<bool> broken{false};  // `error` is written before, by the thread, and read after
  std::mutex mutex;
  std::condition_variable changed;
  State wish = State::kAlive;
  std::string reason;  // of kFailed
  std::string error;   // why a rank is gone
  std::thread thread;
  bool ended = false;
  Impl* kept_before = nullptr;
};

Guarded::Guarded(Transport& data, Transport& control, GuardOptions options) {
  check<OptionError>(data.rank() == control.rank() && data.size() == control.size(), "Guarded",
      "both transports must join the same ranks: got ranks ", data.rank(), " and ", control.rank(), ", sizes ",
      data.size(), " and ", control.size());
  check<OptionError>(options.timeout > 0 && std::isfinite(options.timeout), "Guarded",
      "the timeout must be above 0 seconds: got ", options.timeout);
  impl_ = std::make_unique<Impl>(data, control, options);
  impl_->start();
}

Guarded::~Guarded() {
  impl_->fail("it ended before the others");
  // An adapter may still write what arrives for a receive that nobody waits for: those bytes stay.
  static std::atomic<Impl*> kept{nullptr};
  if (impl_->broken) {
    impl_->kept_before = kept;
    while (!kept.compare_exchange_weak(impl_->kept_before, impl_.get())) {
    }
    static_cast<void>(impl_.release());
  }
}

int Guarded::rank() const { return impl_->data.rank(); }
int Guarded::size() const { return impl_->data.size(); }

Ticket Guarded::send(int to, std::span<const std::byte> bytes) {
  return impl_->guarded(*this, [&] { return impl_->data.send(to, bytes); });
}

Ticket Guarded::receive(int from, std::span<std::byte> bytes) {
  return impl_->guarded(*this, [&] { return impl_->data.receive(from, bytes); });
}

bool Guarded::poll(Ticket ticket) {
  return impl_->guarded(*this, [&] { return impl_->data.poll(ticket); });
}

void Guarded::finish() {
  if (impl_->ended) return;
  impl_->require_whole();
  impl_->end(State::kDone, {});
  impl_->ended = true;
  impl_->require_whole();
}

void Guarded::fail(const std::string& reason) noexcept { impl_->fail(reason); }

}  // namespace qkv::inline v0::dist
