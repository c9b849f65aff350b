#include "attention/placed_rows.h"

#include <cstring>

namespace qkv::inline v0 {

AttentionOptions placed(const AttentionOptions& options, const Placement& place) {
  AttentionOptions wide = options;
  wide.place = place;
  return wide;
}

void copy_rows(const RowBytes& from, const RowBytes& to) {
  for (Index b = 0; b < from.sizes[0]; ++b) {
    for (Index h = 0; h < from.sizes[1]; ++h) {
      for (Index i = 0; i < from.sizes[2]; ++i) {
        std::memcpy(to.data + b * to.strides[0] + h * to.strides[1] + i * to.strides[2],
                    from.data + b * from.strides[0] + h * from.strides[1] + i * from.strides[2],
                    static_cast<std::size_t>(from.width));
      }
    }
  }
}

}  // namespace qkv::inline v0
