#include "attention/plan/placed_rows.h"

#include <cstring>

namespace qkv::inline v0 {
namespace {

/// to = from, of the same sizes.
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

}  // namespace

AttentionOptions placed(const AttentionOptions& options, const Placement& place) {
  AttentionOptions wide = options;
  wide.place = place;
  return wide;
}

StripCopy::StripCopy(const RowBytes& rows, const StripRows& strips, const void* fill, std::size_t size) {
  if (rows.data == nullptr) return;
  const auto [batch, heads, length] = rows.sizes;
  memory_ = Tensor<std::byte>({batch, heads, strips.count, rows.width});
  std::byte* const data = memory_.data();
  for (std::size_t at = 0; fill != nullptr && at < static_cast<std::size_t>(memory_.count()); at += size) {
    std::memcpy(data + at, fill, size);
  }
  const Index row = rows.width, head = strips.count * row;
  own_ = {data + strips.before * row, rows.sizes, {heads * head, head, row}, row};
  copy_rows(rows, own_);
}

void StripCopy::copy_to(const RowBytes& rows) const {
  if (rows.data != nullptr) copy_rows(own_, rows);
}

}  // namespace qkv::inline v0
