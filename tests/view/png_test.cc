// The PNG is read back with libpng and compared with the colours that the weights must have.
#include "qkv/view/png.h"

#include <gtest/gtest.h>
#include <png.h>

#include <algorithm>
#include <filesystem>

#include "maps.h"
#include "qkv/error.h"
#include "view/font.h"
#include "view/layout.h"
#include "view/text.h"

namespace qkv::view {
namespace {

struct Picture {
  int width = 0, height = 0;
  std::vector<png_byte> pixels;  // [height, width, 3]

  Rgb at(int x, int y) const {
    const auto offset = static_cast<std::size_t>(3 * (y * width + x));
    return {pixels[offset], pixels[offset + 1], pixels[offset + 2]};
  }
};

Picture decode(const std::vector<std::byte>& bytes) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Picture out;
  EXPECT_NE(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()), 0) << image.message;
  EXPECT_NE(image.format & PNG_FORMAT_FLAG_COLORMAP, 0u) << "not a palette image";
  image.format = PNG_FORMAT_RGB;
  out.width = static_cast<int>(image.width);
  out.height = static_cast<int>(image.height);
  out.pixels.resize(PNG_IMAGE_SIZE(image));
  EXPECT_NE(png_image_finish_read(&image, nullptr, out.pixels.data(), 0, nullptr), 0) << image.message;
  return out;
}

Layout layout_of(const AttentionMap& map, const MapOptions& options) {
  return lay_out(map, options, [](std::string_view text, int scale) {
    return static_cast<int>(ascii_label(text).size()) * kGlyphAdvance * scale;
  });
}

/// Every cell has the colour of its weight (without numbers, which would cover centres).
void expect_colours(const AttentionMap& map, MapOptions options) {
  options.numbers = CellNumbers::kNever;
  const Picture picture = decode(render_png(map, options));
  const Layout layout = layout_of(map, options);
  ASSERT_EQ(picture.width, layout.width);
  ASSERT_EQ(picture.height, layout.height);
  const View<const float, 4> weights = map.weights.view<4>();
  for (const Panel& panel : layout.panels) {
    for (Index i = 0; i < map.q_len(); ++i) {
      for (Index j = 0; j < map.kv_len(); ++j) {
        const int index = colour_index(weights(panel.layer, panel.head, i, j), top_weight(map, options.range), options.scale);
        const Rgb expected = index < 0 ? kNanColour : colour_map(Theme::kLight)[static_cast<std::size_t>(index)];
        const Rgb got = picture.at(panel.cells.x + layout.columns.centre(j), panel.cells.y + layout.rows.centre(i));
        ASSERT_EQ(got, expected) << panel.name << " " << i << " " << j;
      }
    }
  }
}

TEST(Png, CellsHaveTheColoursOfTheirWeights) {
  expect_colours(causal_map(1, 1, 8, characters("abababab"), "title"), {});
  expect_colours(causal_map(1, 4, 33), {.range = ValueRange::kMax, .scale = ColourScale::kLinear});
  expect_colours(causal_map(2, 3, 5), {.layers = {1}, .heads = {2, 0}});
  expect_colours(causal_map(1, 16, 64), {});
  expect_colours(causal_map(1, 1, 1), {});
  expect_colours(causal_map(1, 2, 300), {});
  expect_colours(nan_map(), {});
}

TEST(Png, PanelsAndLabelsDoNotOverlap) {
  for (const Index heads : {1, 2, 3, 5, 8, 12, 16}) {
    for (const Index length : {1, 2, 7, 16, 32, 64}) {
      const AttentionMap map =
          causal_map(1, heads, length, std::vector<std::string>(static_cast<std::size_t>(length), "token"));
      const Layout layout = layout_of(map, {});
      ASSERT_EQ(layout.panels.size(), static_cast<std::size_t>(heads));
      for (const Panel& a : layout.panels) {
        EXPECT_GE(a.cells.x, kMargin + layout.rows.gutter);
        EXPECT_LE(a.cells.x + a.cells.width, layout.bar.x);
        EXPECT_LE(a.cells.y + a.cells.height + layout.columns.gutter, layout.height);
        for (const Panel& b : layout.panels) {
          const bool apart = a.cells.x + a.cells.width < b.cells.x || b.cells.x + b.cells.width < a.cells.x ||
                             a.cells.y + a.cells.height < b.cells.y || b.cells.y + b.cells.height < a.cells.y;
          EXPECT_TRUE(&a == &b || apart) << heads << " heads, " << length << " tokens";
        }
      }
      EXPECT_LT(layout.width, 2000);
      EXPECT_LT(layout.height, 2000);
    }
  }
}

TEST(Png, NumbersAreWrittenIntoLargeCells) {
  const AttentionMap map = causal_map(1, 1, 4);
  const std::vector<std::byte> with = render_png(map, {}), without = render_png(map, {.numbers = CellNumbers::kNever});
  EXPECT_NE(decode(with).pixels, decode(without).pixels);
}

TEST(Png, LongSequencesShowTheLargestOfEachBlock) {
  AttentionMap map;
  map.weights = Tensor<float>({1, 1, 1, 10'000});
  map.weights.data()[9'001] = 1;
  const Layout layout = layout_of(map, {});
  ASSERT_GT(layout.columns.pool, 1);
  const Picture picture = decode(render_png(map));
  const Box& cells = layout.panels[0].cells;
  EXPECT_EQ(picture.at(cells.x + layout.columns.centre(9'001), cells.y), colour_map(Theme::kLight).back());
  EXPECT_EQ(picture.at(cells.x + layout.columns.centre(5'000), cells.y), colour_map(Theme::kLight).front());
}

TEST(Png, EmptyAndHostileMapsAreDrawn) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{0, 3}, {3, 0}, {0, 0}}) {
    EXPECT_GT(decode(render_png(empty_map(rows, columns))).width, 0);
  }
  EXPECT_GT(decode(render_png(causal_map(1, 1, 8, hostile_tokens(), hostile_tokens()[2]))).width, 0);
}

TEST(Png, UnknownHeadIsAnError) {
  EXPECT_THROW(render_png(causal_map(1, 2, 3), {.heads = {2}}), OptionError);
  EXPECT_THROW(render_png(causal_map(1, 2, 3), {.layers = {-1}}), OptionError);
}

TEST(Png, FontHasEveryPrintableCharacter) {
  const auto dots = [](char c) {
    std::string out;
    for (int row = 0; row < kGlyphHeight; ++row) {
      for (int column = 0; column < kGlyphWidth; ++column) out += glyph_dot(c, column, row) ? '#' : '.';
    }
    return out;
  };
  std::vector<std::string> seen{dots('\x7f')};  // the box
  for (char c = ' '; c < '\x7f'; ++c) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), dots(c)), 0) << c << " looks like another character";
    seen.push_back(dots(c));
  }
}

TEST(Png, SavesTheBytesOrThrows) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "qkv_view_save_test.png";
  const AttentionMap map = causal_map(1, 1, 3);
  save_png(path, map);
  EXPECT_EQ(std::filesystem::file_size(path), render_png(map).size());
  std::filesystem::remove(path);
  EXPECT_THROW(save_png(path / "below" / "nothing.png", map), IoError);
}

}  // namespace
}  // namespace qkv::view
