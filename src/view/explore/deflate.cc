#include "view/explore/deflate.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

namespace qkv::inline v0::view {

std::string deflate_bytes(std::span<const std::byte> bytes, int level) {
  z_stream stream{};
  if (deflateInit(&stream, level) != Z_OK) throw std::bad_alloc();
  std::string out;
  std::array<char, 65536> piece;
  int status = Z_OK;
  do {
    if (stream.avail_in == 0 && !bytes.empty()) {  // zlib counts in 32 bits
      const std::size_t count = std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(count);
      bytes = bytes.subspan(count);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = deflate(&stream, bytes.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.append(piece.data(), piece.size() - stream.avail_out);
  } while (status != Z_STREAM_END);
  deflateEnd(&stream);
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
