// The home of the virtual tables, and waiting.
#include "qkv/dist/transport.h"

#include <chrono>
#include <thread>

namespace qkv::inline v0::dist {

TransportError::~TransportError() = default;
Transport::~Transport() = default;

void wait(Transport& transport, Ticket ticket) {
  constexpr int kEager = 200, kYielding = 2000;  // polls; then sleep: a rank that waits for a slow one takes no processor
  for (int polls = 0; !transport.poll(ticket); ++polls) {
    if (polls >= kYielding) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else if (polls >= kEager) {
      std::this_thread::yield();
    }
  }
}

void wait(Transport& transport, std::span<const Ticket> tickets) {
  for (const Ticket ticket : tickets) wait(transport, ticket);
}

}  // namespace qkv::inline v0::dist
