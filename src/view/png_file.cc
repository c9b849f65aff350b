#include "view/png_file.h"

#include <zlib.h>

#include <cmath>
#include <string>

#include "view/explore/deflate.h"

namespace qkv::inline v0::view {
namespace {

constexpr int kLevel = 6;  // of deflate; 9 is four times slower and a few percent smaller

/// The four bytes of a number, the most significant first.
std::string bytes_of(std::uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 255);
  return out;
}

/// Length, type, data, CRC of type and data.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  return bytes_of(static_cast<std::uint32_t>(data.size())) + body + bytes_of(static_cast<std::uint32_t>(crc));
}

}  // namespace

std::vector<std::byte> encode_png(const PngImage& image) {
  // Rows as they are, each behind a 0: differences to the row above were no smaller, in pictures with text and without.
  const std::size_t length = 1 + static_cast<std::size_t>(image.width) * (image.palette.empty() ? 3 : 1);
  std::vector<std::uint8_t> rows(length * static_cast<std::size_t>(image.height));
  for (int y = 0; y < image.height; ++y)
    image.fill_row(y, std::span(rows).subspan(static_cast<std::size_t>(y) * length + 1, length - 1));
  std::string palette;
  for (const Rgb& c : image.palette)
    for (const std::uint8_t channel : {c.red, c.green, c.blue}) palette += static_cast<char>(channel);
  const std::string density = bytes_of(static_cast<std::uint32_t>(std::lround(image.pixels_per_metre)));
  const char colours = palette.empty() ? 2 : 3;  // red, green, blue; or entries of a palette

  std::string file = "\x89PNG\r\n\x1A\n";
  file += chunk("IHDR", bytes_of(static_cast<std::uint32_t>(image.width)) +
                            bytes_of(static_cast<std::uint32_t>(image.height)) +
                            std::string{8, colours, 0, 0, 0});  // 8 bits, not interlaced
  if (!palette.empty()) file += chunk("PLTE", palette);
  if (image.pixels_per_metre > 0) file += chunk("pHYs", density + density + '\x01');  // the unit is the metre
  file += chunk("IDAT", deflate_bytes(std::as_bytes(std::span(rows)), kLevel)) + chunk("IEND", "");
  const auto bytes = std::as_bytes(std::span(file));
  return {bytes.begin(), bytes.end()};
}

}  // namespace qkv::inline v0::view
