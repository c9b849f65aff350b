// The home of the virtual tables, and waiting.
#include "qkv/dist/transport.h"

#include "dist/waiting.h"

namespace qkv::inline v0::dist {

TransportError::~TransportError() = default;
Transport::~Transport() = default;

void wait(Transport& transport, Ticket ticket) {
  wait_until([&] { return transport.poll(ticket); });
}

void wait(Transport& transport, std::span<const Ticket> tickets) {
  for (const Ticket ticket : tickets) wait(transport, ticket);
}

}  // namespace qkv::inline v0::dist
