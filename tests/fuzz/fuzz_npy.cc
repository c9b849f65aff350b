// libFuzzer: any bytes are read as .npy or refused with FormatError; what was read is written and read again unchanged.
#include <cstdint>
#include <cstdlib>

#include "io/bytes.h"
#include "qkv/io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  try {
    const AnyTensor tensor = io::parse_npy(std::as_bytes(std::span(data, size)));
    if (!test::same(io::parse_npy(io::write_npy(tensor)), tensor)) std::abort();
  } catch (const FormatError& error) {
    if (error.byte_offset() > size) std::abort();
  }
  return 0;
}
