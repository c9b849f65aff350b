// Uses the installed ranks: each of four sends its number around a ring.
#include <qkv/dist/in_process.h>

#include <array>
#include <cstdio>

int main() {
  std::array<int, 4> got{};
  qkv::dist::run_in_process(4, [&](qkv::dist::Transport& transport) {
    const int rank = transport.rank();
    int& from_left = got[static_cast<std::size_t>(rank)];
    const qkv::dist::Ticket both[] = {transport.send((rank + 1) % 4, std::as_bytes(std::span(&rank, 1))),
        transport.receive((rank + 3) % 4, std::as_writable_bytes(std::span(&from_left, 1)))};
    qkv::dist::wait(transport, both);
  });
  const bool right = got == std::array{3, 0, 1, 2};
  std::printf("around the ring: %s\n", right ? "right" : "wrong");
  return right ? 0 : 1;
}
