// SVG is well-formed XML, has one tooltip per cell, and keeps every token inside its text.
#include <gtest/gtest.h>

#include "maps.h"
#include "qkv/view/pictures.h"
#include "view/text.h"
#include "xml.h"

namespace qkv::view {
namespace {

XmlSummary read(const std::string& svg) { return XmlReader(svg).read(); }

TEST(XmlReader, SeesWhatIsBroken) {
  EXPECT_EQ(read("<a b=\"1\"><c/>x &amp; y</a>").error, "");
  for (const char* broken : {"<a>", "<a></b>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>", "<a>&x;</a>", "<a>\x1b</a>",
           "<a b=\"<\"/>", "<a>& </a>"}) {
    EXPECT_NE(read(broken).error, "") << broken;
  }
}

TEST(Svg, OneRectangleAndTooltipPerCell) {
  const AttentionMap map = causal_map(1, 2, 5, characters("abcde"), "five");
  const XmlSummary with = read(render_svg(map));
  ASSERT_EQ(with.error, "");
  EXPECT_EQ(with.elements.at("title"), 1 + map.weights.count());  // and one of the picture
  const std::string svg = render_svg(map);
  Index cells = 0;
  for (std::size_t at = svg.find("><title>"); at != std::string::npos; at = svg.find("><title>", at + 1)) ++cells;
  EXPECT_EQ(cells, map.weights.count());
  EXPECT_NE(
      svg.find("<title>b (1) looks at a (0): " + exact_percent(map.weights.data()[5]) + "</title>"), std::string::npos);
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
  const XmlSummary summary = read(svg);
  EXPECT_EQ(summary.error, "");
  EXPECT_EQ(summary.elements.at("image"), 2);
  EXPECT_EQ(summary.elements.at("title"), 1);
  EXPECT_LT(svg.size(), 100'000u);
}

TEST(Svg, HostileTokensStayText) {
  const std::string svg = render_svg(causal_map(1, 1, 8, hostile_tokens(), hostile_tokens()[0]));
  const XmlSummary summary = read(svg);
  EXPECT_EQ(summary.error, "");
  EXPECT_EQ(summary.elements.count("script"), 0u);
  EXPECT_EQ(summary.elements.count("img"), 0u);
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

TEST(Svg, EmptyOneCellAndNanMaps) {
  for (const AttentionMap& map : {empty_map(0, 3), empty_map(3, 0), causal_map(1, 1, 1), nan_map()}) {
    EXPECT_EQ(read(render_svg(map)).error, "");
  }
}

}  // namespace
}  // namespace qkv::view
