// zlib: bytes that the page inflates with DecompressionStream("deflate").
#pragma once

#include <span>
#include <string>

namespace qkv::inline v0::view {

/// RFC 1950, level 1 to 9. Throws std::bad_alloc.
std::string deflate_bytes(std::span<const std::byte> bytes, int level);

/// bytes of n numbers of `width` bytes -> all first bytes, all second bytes, ...: exponents beside exponents deflate by
/// a tenth more.
std::string byte_planes(std::span<const std::byte> bytes, std::size_t width);

}  // namespace qkv::inline v0::view
