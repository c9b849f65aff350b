// One queue of whole messages per ordered pair of ranks. A sender's own poll copies its bytes into the queue, a
// receiver's own poll copies them out: no thread ever touches another's memory, so a rank that ends early leaves
// nothing dangling.
#include "qkv/dist/in_process.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "core/check.h"

namespace qkv::inline v0::dist {
namespace {

using Bytes = std::vector<std::byte>;

/// Shared by all ranks.
struct Hub {
  explicit Hub(int ranks)
      : size(ranks),
        queues(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)),
        left(static_cast<std::size_t>(ranks)) {}
  std::deque<Bytes>& queue(int from, int to) { return queues[static_cast<std::size_t>(Index{from} * size + to)]; }

  const int size;
  std::mutex mutex;
  std::vector<std::deque<Bytes>> queues;
  std::vector<std::optional<std::string>> left;  // by rank: why it left, empty when it was done
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Hub& hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_.size; }
  Ticket send(int to, std::span<const std::byte> bytes) override {
    return start("Transport::send", {0, to, bytes, {}, true});
  }
  Ticket receive(int from, std::span<std::byte> bytes) override {
    return start("Transport::receive", {0, from, {}, bytes, false});
  }
  bool poll(Ticket ticket) override {
    check<OptionError>(ticket.id >= 0 && ticket.id < next_, "Transport::poll",
        "the ticket must be of this transport: got ", ticket.id);
    if (!error_.empty()) throw TransportError(error_);
    or_end([&] { move_on(); });
    return std::ranges::find(under_way_, ticket.id, &Operation::id) == under_way_.end();
  }

 private:
  struct Operation {
    Index id;
    int peer;
    std::span<const std::byte> out;
    std::span<std::byte> in;
    bool sends;
  };

  Ticket start(const char* function, Operation one) {
    if (!error_.empty()) throw TransportError(error_);
    check<OptionError>(one.peer >= 0 && one.peer < size(), function, "the rank must be in [0, size): got ", one.peer,
        ", size ", size());
    one.id = next_;
    or_end([&] { under_way_.push_back(one); });
    return {next_++};
  }

  /// Where memory is out, it is the transport's end: what is under way stays as it is.
  template <class Work> void or_end(const Work& work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      error_ = "out of memory";  // so short that it takes none
      throw;
    }
  }

  void move_on() {
    const std::lock_guard lock(hub_.mutex);
    std::unordered_set<int> blocked;  // a rank whose earlier message has not come keeps the later receives waiting
    std::erase_if(under_way_, [&](const Operation& one) {
      if (one.sends) {
        hub_.queue(rank_, one.peer).emplace_back(one.out.begin(), one.out.end());
        return true;
      }
      auto& queue = hub_.queue(one.peer, rank_);
      if (queue.empty() && hub_.left[static_cast<std::size_t>(one.peer)]) break_off(one.peer);
      if (queue.empty() || blocked.contains(one.peer)) {
        blocked.insert(one.peer);
        return false;
      }
      const Bytes message = std::move(queue.front());
      queue.pop_front();
      if (message.size() != one.in.size()) {
        error_ = "[Transport::receive] a message must have the length of its receive: rank " +
                 std::to_string(one.peer) + " sent " + std::to_string(message.size()) + " bytes, rank " +
                 std::to_string(rank_) + " expects " + std::to_string(one.in.size());
        throw TransportError(error_);
      }
      std::ranges::copy(message, one.in.begin());
      return true;
    });
  }

  [[noreturn]] void break_off(int peer) {
    const std::string& reason = *hub_.left[static_cast<std::size_t>(peer)];
    error_ = "[Transport::poll] every rank must be there until the last message: rank " + std::to_string(peer) +
             (reason.empty() ? " has returned and sent nothing more" : " has ended: " + reason);
    throw TransportError(error_);
  }

  Hub& hub_;
  const int rank_;
  Index next_ = 0;
  std::vector<Operation> under_way_;
  std::string error_;
};

}  // namespace

struct InProcess::Impl {
  explicit Impl(int ranks) : hub(ranks) {
    for (int rank = 0; rank < ranks; ++rank) lines.push_back(std::make_unique<InProcessTransport>(hub, rank));
  }
  Hub hub;
  std::vector<std::unique_ptr<InProcessTransport>> lines;
};

InProcess::InProcess(int ranks) {
  check<OptionError>(ranks >= 1, "InProcess", "the number of ranks must be at least 1: got ", ranks);
  impl_ = std::make_unique<Impl>(ranks);
}
InProcess::~InProcess() = default;

int InProcess::size() const { return impl_->hub.size; }

Transport& InProcess::rank(int rank) {
  check<OptionError>(rank >= 0 && rank < size(), "InProcess::rank", "the rank must be in [0, size): got ", rank);
  return *impl_->lines[static_cast<std::size_t>(rank)];
}

void InProcess::leave(int rank, const std::string& reason) {
  check<OptionError>(rank >= 0 && rank < size(), "InProcess::leave", "the rank must be in [0, size): got ", rank);
  const std::lock_guard lock(impl_->hub.mutex);
  impl_->hub.left[static_cast<std::size_t>(rank)] = reason;
}

void run_in_process(int ranks, const std::function<void(Transport&)>& body) {
  InProcess lines(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto leave = [&](int rank, const char* reason) {
    try {
      lines.leave(rank, reason);
    } catch (const std::bad_alloc&) {
      lines.leave(rank, "an exception");  // so short that it takes no memory
    }
  };
  const auto run = [&](int rank) {
    try {
      body(lines.rank(rank));
      leave(rank, "");
    } catch (const std::exception& error) {
      keep();
      leave(rank, error.what());
    } catch (...) {
      keep();
      leave(rank, "an exception");
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
    run(0);
  } catch (...) {  // the system has no more threads: those that run wait for ranks that will never be
    keep();
    for (int rank = static_cast<int>(threads.size()) + 1; rank <= ranks; ++rank)
      leave(rank % ranks, "it could not be started");
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace qkv::inline v0::dist
