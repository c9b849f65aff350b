// Text for terminals: no escape byte without colour, no line wider than the terminal, the right numbers and colours.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "maps.h"
#include "qkv/view/pictures.h"
#include "view/text.h"

namespace qkv::view {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The text without its colour sequences; fails on any other control sequence.
std::string without_colours(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\x1b') {
      out += text[at];
      continue;
    }
    const std::size_t end = text.find_first_not_of("0123456789;[", at + 1);
    EXPECT_EQ(text[end], 'm');
    at = end;
  }
  return out;
}

TEST(Terminal, FitsTheWidthInEveryStyle) {
  for (const Index length : {1, 8, 17, 32, 64, 300}) {
    for (const int columns : {20, 40, 80, 200}) {
      for (const bool colour : {false, true}) {
        const AttentionMap map = causal_map(1, 3, length,
            length == 17 ? std::vector<std::string>(17, "\xe7\x8c\xab\xe7\x8c\xab") : std::vector<std::string>{});
        const std::string text = render_terminal(map, {.colour = colour, .columns = columns});
        EXPECT_EQ(colour, text.find('\x1b') != std::string::npos);
        std::vector<std::string> lines = lines_of(without_colours(text));
        while (!lines.empty() && (lines.back().find("0%") == 0 || lines.back().find("each") == 0 ||
                                     lines.back().find("in percent") == 0)) {
          lines.pop_back();  // the legend may be longer than a very narrow terminal
        }
        for (const std::string& line : lines) EXPECT_LE(display_width(line), columns) << length << " " << line;
      }
    }
  }
}

/// Work in proportion to the rows: with that to their square these took four minutes.
TEST(Terminal, ManyRows) {
  AttentionMap map;
  map.weights = Tensor<float>({1, 1, 400'000, 1});
  std::ranges::fill(map.weights.span(), 1.0F);
  EXPECT_EQ(lines_of(render_terminal(map, {.colour = false})).size(), 400'000u + 3);
}

TEST(Terminal, ColoursAreThoseOfTheWeights) {
  const AttentionMap map = causal_map(1, 1, 5);
  for (const Theme theme : {Theme::kLight, Theme::kDark}) {
    for (const int columns : {20, 80}) {
      const std::string text = render_terminal(map, {.columns = columns, .theme = theme});
      for (const float w : map.weights.span()) {
        const Rgb c = colour_map(theme)[static_cast<std::size_t>(colour_index(w, 1, ColourScale::kSqrt))];
        const std::string code =
            "8;2;" + std::to_string(c.red) + ";" + std::to_string(c.green) + ";" + std::to_string(c.blue) + "m";
        EXPECT_NE(text.find(code), std::string::npos) << w;
      }
    }
  }
}

TEST(Terminal, HalfBlocksShowTwoRowsALine) {
  const std::vector<std::string> lines = lines_of(render_terminal(causal_map(1, 1, 61), {.columns = 80}));
  std::size_t rows = 0;
  for (const std::string& line : lines) rows += line.find("\xE2\x96\x80") != std::string::npos;
  EXPECT_EQ(rows, 31u);
}

TEST(Terminal, HostileTokensSendNoSequence) {
  const AttentionMap map = causal_map(1, 1, 8, hostile_tokens(), hostile_tokens()[2]);
  for (const bool unicode : {false, true}) {
    const std::string text = render_terminal(map, {.colour = false, .unicode = unicode, .columns = 120});
    for (const char c : text) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
      EXPECT_TRUE(unicode || static_cast<unsigned char>(c) < 0x7F);
    }
    const std::string coloured = render_terminal(map, {.unicode = unicode, .columns = 120});
    EXPECT_EQ(without_colours(coloured).find('\x1b'), std::string::npos);
    EXPECT_EQ(coloured.find("\x1b]"), std::string::npos);
    EXPECT_EQ(coloured.find("\x1b[31m"), std::string::npos);
  }
}

TEST(Terminal, EmptyOneCellAndNanMaps) {
  EXPECT_NE(render_terminal(empty_map(0, 3)).find("no queries"), std::string::npos);
  EXPECT_NE(render_terminal(empty_map(3, 0)).find("no keys"), std::string::npos);
  EXPECT_NE(render_terminal(causal_map(1, 1, 1), {.colour = false}).find("100"), std::string::npos);
  EXPECT_NE(render_terminal(nan_map(), {.colour = false}).find("-"), std::string::npos);
}

TEST(Terminal, NumbersAreRoundedPercentages) {
  const AttentionMap map = causal_map(1, 1, 6, characters("abcabc"));
  const std::vector<std::string> lines = lines_of(render_terminal(map, {.colour = false}));
  ASSERT_EQ(lines.size(), 1u + 1 + 6 + 1);  // name, header, rows, legend
  for (Index i = 0; i < 6; ++i) {
    std::istringstream row(lines[static_cast<std::size_t>(i + 2)]);
    std::string label, cell;
    row >> label;
    EXPECT_EQ(label, map.query_tokens[static_cast<std::size_t>(i)]);
    for (Index j = 0; j < 6; ++j) {
      const float w = map.weights.view<4>()(0, 0, i, j);
      row >> cell;
      EXPECT_EQ(cell, w == 0 ? "." : std::to_string(std::lround(100 * static_cast<double>(w))));
    }
  }
}

}  // namespace
}  // namespace qkv::view
