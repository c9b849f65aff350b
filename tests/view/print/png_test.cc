// The PNG is read back with libpng and compared with the colours that the weights must have.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "qkv/error.h"
#include "qkv/view/pictures.h"
#include "support/errors.h"
#include "view/maps.h"
#include "view/png_pixels.h"
#include "view/print/typesetter.h"

namespace qkv::view {
namespace {

Layout layout_of(const AttentionMap& map, const MapOptions& options) {
  const Typesetter typesetter;
  return lay_out(map, options, typesetter.text_width());
}

Rgb colour_of(float weight, float top, ColourScale scale) {
  const int index = colour_index(weight, top, scale);
  return weight == 0 ? kZeroColour
         : index < 0 ? kNanColour
                     : colour_map(Theme::kLight)[static_cast<std::size_t>(index)];
}

/// Every cell has the colour of its weight (without numbers, which would cover centres).
void expect_colours(const AttentionMap& map, MapOptions options) {
  options.numbers = CellNumbers::kNever;
  const Pixels picture = decode(render_png(map, options));
  const Layout layout = layout_of(map, options);
  ASSERT_EQ(picture.width, layout.width);
  ASSERT_EQ(picture.height, layout.height);
  const View<const float, 4> weights = map.weights.view<4>();
  for (const Panel& panel : layout.panels) {
    for (Index i = 0; i < map.q_len(); ++i) {
      for (Index j = 0; j < map.kv_len(); ++j) {
        const Rgb expected =
            colour_of(weights(panel.layer, panel.head, i, j), top_weight(map, options.range), options.scale);
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
  EXPECT_NE(decode(with).bytes, decode(without).bytes);
}

TEST(Png, LongSequencesShowTheLargestOfEachBlock) {
  AttentionMap map;
  map.weights = Tensor<float>({1, 1, 1, 10'000});
  map.weights.data()[9'001] = 1;
  const Layout layout = layout_of(map, {});
  ASSERT_GT(layout.columns.pool, 1);
  const Pixels picture = decode(render_png(map));
  const Box& cells = layout.panels[0].cells;
  EXPECT_EQ(picture.at(cells.x + layout.columns.centre(9'001), cells.y), colour_map(Theme::kLight).back());
  EXPECT_EQ(picture.at(cells.x + layout.columns.centre(5'000), cells.y), kZeroColour);
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

TEST(Png, ARatioOfPixelsEnlargesEverything) {
  const AttentionMap map = causal_map(1, 2, 6, characters("abcdef"), "title");
  const MapOptions options{.numbers = CellNumbers::kNever};
  const Layout layout = layout_of(map, options);
  for (const double ratio : {1.0, 1.5, 2.0, 3.0, 8.0}) {
    const std::vector<std::byte> file = render_png(map, options, {.pixel_ratio = ratio});
    const Pixels picture = decode(file);
    EXPECT_EQ(picture.width, std::ceil(layout.width * ratio));
    EXPECT_EQ(picture.height, std::ceil(layout.height * ratio));
    EXPECT_EQ(picture.at(picture.width - 1, picture.height - 1), (Rgb{255, 255, 255}));
    for (const Panel& panel : layout.panels) {
      for (Index i = 0; i < 6; ++i) {
        for (Index j = 0; j < 6; ++j) {
          const int x = panel.cells.x + layout.columns.centre(j), y = panel.cells.y + layout.rows.centre(i);
          ASSERT_EQ(picture.at(static_cast<int>(x * ratio), static_cast<int>(y * ratio)),
              colour_of(map.weights.view<4>()(0, panel.head, i, j), 1, options.scale));
        }
      }
    }
    // 96 dots per inch at ratio 1: the file says the size, so that print does not depend on the ratio.
    const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
    const std::size_t at = bytes.find("pHYs");
    ASSERT_NE(at, std::string_view::npos);
    long density = 0;
    for (std::size_t n = 4; n < 8; ++n) density = density * 256 + static_cast<unsigned char>(bytes[at + n]);
    EXPECT_EQ(density, std::lround(96 / 0.0254 * ratio));
  }
  for (const double ratio : {0.0, 0.99, 8.01, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(render_png(map, options, {.pixel_ratio = ratio}), OptionError) << ratio;
  }
}

TEST(Png, APictureTooLargeForPixelsIsAnError) {
  AttentionMap map;
  map.weights = Tensor<float>({1, 1, 4096, 4096});
  test::expect_error<OptionError>([&] { render_png(map, {}, {.pixel_ratio = 8}); }, {"pixel_ratio"});
}

TEST(Png, TextIsSmoothAndOfAnyScript) {
  std::set<std::vector<png_byte>> pictures;
  for (const char* title : {"plain", "naïve", "注意力", "انتباه", "внимание", "❤"}) {
    const Pixels picture = decode(render_png(causal_map(1, 1, 2), {.numbers = CellNumbers::kNever}));
    const Pixels titled = decode(render_png(causal_map(1, 1, 2, {}, title), {.numbers = CellNumbers::kNever}));
    EXPECT_GT(titled.height, picture.height);
    std::set<int> levels;
    for (int y = 0; y < kMargin + kLineHeight; ++y) {
      for (int x = 0; x < titled.width; ++x) levels.insert(titled.at(x, y).red);
    }
    EXPECT_GT(levels.size(), 8u) << title;  // paper, ink and what lies between
    pictures.insert(titled.bytes);
  }
  EXPECT_EQ(pictures.size(), 6u);
}

TEST(Png, LongAndHostileLabelsStayShort) {
  const auto repeated = [](std::string_view text) {
    std::string out;
    for (int n = 0; n < 2000; ++n) out += text;
    return out;
  };
  std::vector<std::string> tokens = hostile_tokens();
  for (const char* text : {"W", "我", "\x80", "\u0301", "\u202e", "<b>", "😀", "ﷺ"}) tokens.push_back(repeated(text));
  const AttentionMap map = causal_map(1, 1, std::ssize(tokens), tokens, tokens.back());
  const Layout layout = layout_of(map, {});
  EXPECT_LT(layout.rows.gutter, 24 * kLargeText);  // 24 columns; no character of them is wider than the font's size
  EXPECT_LT(layout.columns.gutter, 24 * kLargeText);
  const Pixels picture = decode(render_png(map));
  EXPECT_EQ(picture.width, layout.width);
}

TEST(Png, EveryThreadDrawsTheSame) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not see GLib's locks";
#endif
  const AttentionMap map = causal_map(1, 2, 7, characters("abc 注意力"), "ثمانية");
  const std::vector<std::byte> expected = render_png(map);
  std::vector<std::vector<std::byte>> drawn(4);
  std::vector<std::thread> threads;
  for (std::vector<std::byte>& bytes : drawn) threads.emplace_back([&] { bytes = render_png(map); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::byte>& bytes : drawn) EXPECT_EQ(bytes, expected);
}

}  // namespace
}  // namespace qkv::view
