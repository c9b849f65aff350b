#include "view/explore/deflate.h"

#include <zlib.h>

#include <array>
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

std::string inflate_gzip(std::span<const unsigned char> bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  std::array<char, 65536> piece;
  int status = Z_OK;
  while (status == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    out.append(piece.data(), piece.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  return status == Z_STREAM_END ? out : std::string();
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
