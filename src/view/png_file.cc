#include "view/png_file.h"

#include <zlib.h>

#include <array>
#include <cmath>
#include <new>
#include <string_view>

namespace qkv::inline v0::view {
namespace {

constexpr int kLevel = 6;                // of deflate; 9 is four times slower and a few percent smaller
constexpr std::size_t kPiece = 1 << 16;  // bytes that deflate hands out at once

void append_number(std::vector<std::byte>& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift & 255));
}

/// Length, type, data, CRC of type and data.
void append_chunk(std::vector<std::byte>& out, std::string_view type, std::span<const std::byte> data) {
  append_number(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t start = out.size();
  for (const char letter : type) out.push_back(static_cast<std::byte>(letter));
  out.insert(out.end(), data.begin(), data.end());
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(out.data() + start), out.size() - start);
  append_number(out, static_cast<std::uint32_t>(crc));
}

/// zlib's stream, fed row by row; its output comes in pieces.
class Deflater {
 public:
  Deflater() {
    if (deflateInit(&stream_, kLevel) != Z_OK) throw std::bad_alloc();
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream_); }

  /// Appends to `out` what is ready; all that is left when this is the last call.
  void add(std::span<std::uint8_t> bytes, bool is_last, std::vector<std::byte>& out) {
    stream_.next_in = bytes.data();
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(piece_.data());
      stream_.avail_out = static_cast<uInt>(piece_.size());
      deflate(&stream_, is_last ? Z_FINISH : Z_NO_FLUSH);
      out.insert(out.end(), piece_.begin(), piece_.end() - stream_.avail_out);
    } while (stream_.avail_out == 0);
  }

 private:
  z_stream stream_{};
  std::vector<std::byte> piece_ = std::vector<std::byte>(kPiece);
};

/// Rows as they are, each behind a 0: differences to the row above were no smaller, in pictures with text and without.
std::vector<std::byte> deflated_rows(const PngImage& image) {
  const std::size_t channels = image.palette.empty() ? 3 : 1;
  std::vector<std::uint8_t> row(1 + static_cast<std::size_t>(image.width) * channels);
  std::vector<std::byte> out;
  Deflater deflater;
  for (int y = 0; y < image.height; ++y) {
    image.fill_row(y, std::span(row).subspan(1));
    deflater.add(row, y + 1 == image.height, out);
  }
  return out;
}

}  // namespace

std::vector<std::byte> encode_png(const PngImage& image) {
  std::vector<std::byte> out, data;
  for (const int byte : {0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A}) out.push_back(static_cast<std::byte>(byte));

  append_number(data, static_cast<std::uint32_t>(image.width));
  append_number(data, static_cast<std::uint32_t>(image.height));
  const int colour_type = image.palette.empty() ? 2 : 3;
  for (const int byte : {8, colour_type, 0, 0, 0}) data.push_back(static_cast<std::byte>(byte));  // 8 bits, not interlaced
  append_chunk(out, "IHDR", data);

  if (!image.palette.empty()) {
    data.clear();
    for (const Rgb& c : image.palette) {
      for (const std::uint8_t channel : {c.red, c.green, c.blue}) data.push_back(static_cast<std::byte>(channel));
    }
    append_chunk(out, "PLTE", data);
  }
  if (image.pixels_per_metre > 0) {
    data.clear();
    const auto density = static_cast<std::uint32_t>(std::lround(image.pixels_per_metre));
    append_number(data, density);
    append_number(data, density);
    data.push_back(std::byte{1});  // the unit is the metre
    append_chunk(out, "pHYs", data);
  }
  append_chunk(out, "IDAT", deflated_rows(image));
  append_chunk(out, "IEND", {});
  return out;
}

}  // namespace qkv::inline v0::view
