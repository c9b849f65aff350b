// Element and index types that every other header speaks.
#pragma once

#include <cstdint>

namespace qkv {
inline namespace v0 {

/// Sizes, strides (in elements, never bytes) and positions. Signed, so that differences of positions are ordinary numbers.
using Index = std::int64_t;

}  // namespace v0
}  // namespace qkv
