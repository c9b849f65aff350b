// Ranks as threads of one process: for tests, examples, and to see what a method does without a cluster.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// The lines between `ranks` threads. Strict on purpose: the bytes of a send are read only when its owner polls, as
/// large messages are by MPI, so a program that changes them early or does not poll fails here too.
class QKV_API InProcess {
 public:
  /// Throws OptionError when ranks < 1.
  explicit InProcess(int ranks);
  InProcess(const InProcess&) = delete;
  InProcess& operator=(const InProcess&) = delete;
  ~InProcess();

  int size() const;
  /// The end of one rank, owned by this object.
  Transport& rank(int rank);
  /// Rank `rank` will send nothing more. A rank that waits for a message which was not sent gets TransportError, with
  /// `reason` unless that is empty.
  void leave(int rank, const std::string& reason = {});

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Runs body(transport) for every rank, each on a thread of its own, and returns when all have returned. Where one
/// throws, the others get TransportError as soon as they need it, and the first exception reaches the caller.
QKV_API void run_in_process(int ranks, const std::function<void(Transport&)>& body);

}  // namespace qkv::inline v0::dist
