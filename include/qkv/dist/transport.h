// Transport: how ranks exchange bytes. Send, receive, poll, nothing more; what runs the ranks is somebody else's
// (mpirun, torchrun, threads), failures of ranks are guarded.h's.
#pragma once

#include <cstddef>
#include <span>

#include "qkv/error.h"
#include "qkv/export.h"
#include "qkv/types.h"

namespace qkv::inline v0::dist {

/// A peer is gone, the connection is cut, or a message does not have the length that its receiver expects. The text
/// names the rank. The transport can no longer be used: every later call throws the same.
class QKV_API TransportError : public Error {
 public:
  using Error::Error;
  ~TransportError() override;
};

/// Names one operation that was started on one transport.
struct Ticket {
  Index id = -1;
};

/// One rank's end of the lines to all other ranks. One thread at a time may use an object; different objects may be
/// used at once.
///
/// Messages from one rank to another arrive in the order in which they were sent, and are matched with receives in the
/// order in which these were started. A message has exactly the length of its receive; length 0 is allowed, and so is a
/// message to oneself. Bytes are read and written only while the owner's thread is inside a call of this object: a
/// large message moves on only when both ends poll, so poll between pieces of work.
///
/// An operation that was started must be polled to its end before its bytes go away. The exception is a transport that
/// has thrown TransportError or std::bad_alloc: it touches no bytes any more.
class QKV_API Transport {
 public:
  virtual ~Transport();
  /// This rank, in [0, size()).
  virtual int rank() const = 0;
  /// How many ranks there are, at least 1.
  virtual int size() const = 0;
  /// Starts to send. `bytes` stay the caller's, and unchanged, until poll returns true. Throws OptionError for a rank
  /// that is not there, TransportError.
  virtual Ticket send(int to, std::span<const std::byte> bytes) = 0;
  /// Starts to receive. `bytes` are undefined until poll returns true. Throws as send does.
  virtual Ticket receive(int from, std::span<std::byte> bytes) = 0;
  /// Moves everything that is under way on, without waiting; true when this operation is complete, and ever after.
  /// Throws TransportError when a peer is gone, OptionError for a ticket that this transport did not give.
  virtual bool poll(Ticket ticket) = 0;
};

/// Polls until the operation is complete: without a pause at first, then giving the processor to others between polls.
QKV_API void wait(Transport& transport, Ticket ticket);
/// All of them, in any order.
QKV_API void wait(Transport& transport, std::span<const Ticket> tickets);

}  // namespace qkv::inline v0::dist
