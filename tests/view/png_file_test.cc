// Rows of pixels, written by qkv and read by libpng, are the same pixels.
#include "view/png_file.h"

#include <gtest/gtest.h>

#include "png_pixels.h"

namespace qkv::view {
namespace {

/// Different in every pixel and channel, without a period that a compressor could hide a mistake in.
std::uint8_t noise(int x, int y, int channel) {
  const auto mixed = static_cast<std::uint32_t>(x * 7919 + y * 104729 + channel * 1299709) * 2654435761u;
  return static_cast<std::uint8_t>(mixed >> 24);
}

TEST(PngFile, ColoursComeBack) {
  for (const auto& [width, height] : {std::pair{1, 1}, {3, 2}, {257, 5}, {2, 300}, {1000, 70}}) {
    const auto fill_row = [](int y, std::span<std::uint8_t> row) {
      for (std::size_t n = 0; n < row.size(); ++n) row[n] = noise(static_cast<int>(n / 3), y, static_cast<int>(n % 3));
    };
    const Pixels read = decode(encode_png({width, height, {}, 0, fill_row}));
    ASSERT_EQ(read.width, width);
    ASSERT_EQ(read.height, height);
    EXPECT_FALSE(read.has_palette);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) ASSERT_EQ(read.at(x, y), (Rgb{noise(x, y, 0), noise(x, y, 1), noise(x, y, 2)}));
    }
  }
}

TEST(PngFile, EntriesOfAPaletteComeBack) {
  const std::vector<Rgb> palette{{1, 2, 3}, {255, 0, 128}, {40, 50, 60}};
  const auto entry = [](int x, int y) { return static_cast<std::uint8_t>(noise(x, y, 0) % 3); };
  const auto fill_row = [&](int y, std::span<std::uint8_t> row) {
    for (std::size_t x = 0; x < row.size(); ++x) row[x] = entry(static_cast<int>(x), y);
  };
  const Pixels read = decode(encode_png({41, 23, palette, 0, fill_row}));
  EXPECT_TRUE(read.has_palette);
  for (int y = 0; y < read.height; ++y) {
    for (int x = 0; x < read.width; ++x) ASSERT_EQ(read.at(x, y), palette[entry(x, y)]);
  }
}

}  // namespace
}  // namespace qkv::view
