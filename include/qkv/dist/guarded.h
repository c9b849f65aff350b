// Watches over the other ranks: one that is gone becomes a TransportError on every rank, in seconds and whatever the
// adapter does about it. A slow rank is not gone: a thread of each rank says that its process lives, however long its
// work takes.
#pragma once

#include <memory>
#include <string>

#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

struct GuardOptions {
  double timeout = 8;  ///< seconds; a rank that has been silent for so long is gone
};

/// A Transport that is `data`, unless a rank has failed: then every call throws TransportError, which names that rank
/// and, where it could say so, its reason. `control` is a second transport between the same ranks, used by the guard's
/// thread alone: each rank sends each other rank 256 bytes, eight times within a timeout.
///
/// All ranks make their guards, and all call finish(). A guard that is destroyed before says to the others that its
/// rank has failed.
class QKV_API Guarded final : public Transport {
 public:
  /// Throws OptionError when the two do not have the same rank and size, or the timeout is not above 0.
  Guarded(Transport& data, Transport& control, GuardOptions options = {});
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() override;

  int rank() const override;
  int size() const override;
  Ticket send(int to, std::span<const std::byte> bytes) override;
  Ticket receive(int from, std::span<std::byte> bytes) override;
  bool poll(Ticket ticket) override;

  /// Waits until every rank has called it, and ends the guard: nothing is sent or awaited any more. Throws
  /// TransportError when a rank has failed before.
  void finish();
  /// Tells the others why this rank ends; they throw with this text. Ends the guard.
  void fail(const std::string& reason) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0::dist
