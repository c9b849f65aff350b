// A PNG read back with libpng, which qkv::view does not use.
#pragma once

#include <gtest/gtest.h>
#include <png.h>

#include <cstddef>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::view {

struct Pixels {
  int width = 0, height = 0;
  bool has_palette = false;
  std::vector<png_byte> bytes;  // [height, width, 3]

  Rgb at(int x, int y) const {
    const auto offset = static_cast<std::size_t>(3 * (y * width + x));
    return {bytes[offset], bytes[offset + 1], bytes[offset + 2]};
  }
};

inline Pixels decode(const std::vector<std::byte>& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Pixels out;
  EXPECT_NE(png_image_begin_read_from_memory(&image, file.data(), file.size()), 0) << image.message;
  out.has_palette = (image.format & PNG_FORMAT_FLAG_COLORMAP) != 0;
  image.format = PNG_FORMAT_RGB;
  out.width = static_cast<int>(image.width);
  out.height = static_cast<int>(image.height);
  out.bytes.resize(PNG_IMAGE_SIZE(image));
  EXPECT_NE(png_image_finish_read(&image, nullptr, out.bytes.data(), 0, nullptr), 0) << image.message;
  return out;
}

}  // namespace qkv::view
