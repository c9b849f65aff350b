// SVG has one tooltip per cell, and keeps every token inside its text. That it is XML:
// python/tests/layers/test_plot.py.
#include <gtest/gtest.h>

#include "maps.h"
#include "qkv/view/pictures.h"
#include "view/text.h"

namespace qkv::view {
namespace {

Index count(const std::string& svg, const std::string& what) {
  Index n = 0;
  for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
  return n;
}

TEST(Svg, OneRectangleAndTooltipPerCell) {
  const AttentionMap map = causal_map(1, 2, 5, characters("abcde"), "five");
  const std::string svg = render_svg(map);
  EXPECT_EQ(count(svg, "<title>"), 1 + map.weights.count());  // and one of the picture
  EXPECT_EQ(count(svg, "><title>"), map.weights.count());
  EXPECT_NE(svg.find("<title>b (1) attends to a (0): " + exact_percent(map.weights.data()[5]) + "</title>"),
      std::string::npos);
}

TEST(Svg, CellsHaveTheColoursOfTheirWeights) {
  const AttentionMap map = causal_map(1, 1, 3);
  const std::string svg = render_svg(map);
  for (const float w : map.weights.span()) {
    const Rgb c = w == 0 ? kZeroColour
                         : colour_map(Theme::kLight)[static_cast<std::size_t>(colour_index(w, 1, ColourScale::kSqrt))];
    EXPECT_NE(svg.find("fill=\"#" + hex_digits(c) + "\"><title>"), std::string::npos) << w;
  }
  EXPECT_NE(svg.find(">= 0</text>"), std::string::npos) << "the legend names the cells of masked keys";
  EXPECT_NE(render_svg(nan_map()).find("fill=\"#" + hex_digits(kNanColour) + "\"><title>"), std::string::npos);
}

TEST(Svg, LargeMapsEmbedTheirCells) {
  const AttentionMap map = causal_map(1, 2, 100);
  ASSERT_GT(map.weights.count(), kMaxSvgCells);
  const std::string svg = render_svg(map);
  EXPECT_EQ(count(svg, "<image class=\"light\""), 2);
  EXPECT_EQ(count(svg, "<image class=\"dark\" display=\"none\""), 2);
  EXPECT_EQ(count(svg, "<title>"), 1);
  EXPECT_LT(svg.size(), 100'000u);
}

TEST(Svg, ItsColoursHaveOthersOnADarkPage) {
  const std::string svg = render_svg(causal_map(1, 2, 5, characters("abcde"), "five"));
  const auto &light = colour_map(Theme::kLight), &dark = colour_map(Theme::kDark);
  for (const std::string& rule :
      {std::string("rect[fill=\"#FFFFFF\"] { fill: #16161C }"), std::string("text[fill=\"#1C1C22\"] { fill: #ECECF1 }"),
          "rect[fill=\"#" + hex_digits(light.back()) + "\"] { fill: #" + hex_digits(dark.back()) + " }"})
    EXPECT_EQ(count(svg, ".qkv-map " + rule), 1) << rule;
}

TEST(Svg, ColumnsAreHowManyHeadsStandBesideOneAnother) {
  const auto height = [](Index columns) {
    const std::string svg = render_svg(causal_map(1, 6, 5), {.columns = columns});
    return std::stoi(svg.substr(svg.find("height=\"") + 8));
  };
  EXPECT_EQ(height(1) - height(2), 3 * (height(3) - height(6)));  // six rows, three, two, one
  EXPECT_EQ(height(6), height(9));
  EXPECT_THROW(height(-1), OptionError);
}

TEST(Svg, HostileTokensStayText) {
  const std::string svg = render_svg(causal_map(1, 1, 8, hostile_tokens(), hostile_tokens()[0]));
  EXPECT_EQ(count(svg, "<script") + count(svg, "<img"), 0);
  EXPECT_EQ(svg.find('\x1b'), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;"), std::string::npos);
}

/// U+FFFE and U+FFFF are UTF-8 but no characters of XML.
TEST(Svg, NoncharactersAreNamed) {
  const std::vector<std::string> tokens = {"\xef\xbf\xbe", "a\xef\xbf\xbf"};
  const std::string svg = render_svg(causal_map(1, 1, 2, tokens, "title \xef\xbf\xbf"));
  EXPECT_EQ(svg.find("\xef\xbf\xbe"), std::string::npos);
  EXPECT_EQ(svg.find("\xef\xbf\xbf"), std::string::npos);
  for (const char* shown : {"U+FFFE", "aU+FFFF", "title U+FFFF"})
    EXPECT_NE(svg.find(shown), std::string::npos) << shown;
}

}  // namespace
}  // namespace qkv::view
