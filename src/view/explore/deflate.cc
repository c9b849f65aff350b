#include "view/explore/deflate.h"

#include <zlib.h>

#include <new>

namespace qkv::inline v0::view {

std::string deflate_bytes(std::span<const std::byte> bytes, int level) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  const int status = compress2(
      reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), level);
  if (status != Z_OK) throw std::bad_alloc();
  out.resize(size);
  return out;
}

std::string byte_planes(std::span<const std::byte> bytes, std::size_t width) {
  std::string out(bytes.size(), '\0');
  const std::size_t count = bytes.size() / width;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t b = 0; b < width; ++b) out[b * count + i] = static_cast<char>(bytes[i * width + b]);
  }
  return out;
}

}  // namespace qkv::inline v0::view
