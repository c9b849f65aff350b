// Rows of pixels as the bytes of a PNG file. Source: PNG specification, third edition (W3C).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

struct PngImage {
  int width = 0, height = 0;       // at least 1
  std::span<const Rgb> palette{};  // with one: a pixel is the byte of its entry; without: its red, green and blue
  double pixels_per_metre = 0;     // 0: the file does not say
  std::function<void(int y, std::span<std::uint8_t> row)> fill_row;  // called once for each row, from the top
};

std::vector<std::byte> encode_png(const PngImage& image);

}  // namespace qkv::inline v0::view
