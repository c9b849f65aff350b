// zlib: bytes that the page inflates with DecompressionStream("deflate"), and the page's own program, which lies
// compressed in the library.
#pragma once

#include <span>
#include <string>

namespace qkv::inline v0::view {

/// RFC 1950, level 1 to 9. Throws std::bad_alloc.
std::string deflate_bytes(std::span<const std::byte> bytes, int level);

/// The text of a gzip file that the build made; empty where it is broken.
std::string inflate_gzip(std::span<const unsigned char> bytes);

/// bytes of n numbers of `width` bytes -> all first bytes, all second bytes, ...: exponents beside exponents deflate by
/// a tenth more.
std::string byte_planes(std::span<const std::byte> bytes, std::size_t width);

}  // namespace qkv::inline v0::view
