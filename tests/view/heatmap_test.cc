// The data model, colours and labels.
#include "qkv/view/heatmap.h"

#include <gtest/gtest.h>

#include <cmath>

#include "maps.h"
#include "qkv/error.h"
#include "qkv/view/pictures.h"
#include "view/text.h"

namespace qkv::view {
namespace {

/// sRGB bytes to OKLab, from the published matrices: the inverse of what the library does.
std::array<double, 3> to_oklab(Rgb c) {
  const auto linear = [](std::uint8_t byte) {
    const double x = byte / 255.0;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  const double r = linear(c.red), g = linear(c.green), b = linear(c.blue);
  const double l = std::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const double m = std::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const double s = std::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
      1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s, 0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

TEST(ColourMap, LightnessIsMonotonicAndStepsAreEqual) {
  for (const Theme theme : {Theme::kLight, Theme::kDark}) {
    const auto& colours = colour_map(theme);
    const double sign = theme == Theme::kLight ? -1 : 1;
    constexpr std::size_t kStride = 12;  // long enough that rounding to bytes (0.004 of a channel) does not decide
    double shortest = 1, longest = 0;
    for (std::size_t n = 0; n + kStride < colours.size(); ++n) {
      const auto a = to_oklab(colours[n]), b = to_oklab(colours[n + kStride]);
      EXPECT_GT(sign * (b[0] - a[0]), 0) << n;
      const double step = std::hypot(b[0] - a[0], b[1] - a[1], b[2] - a[2]);
      shortest = std::min(shortest, step);
      longest = std::max(longest, step);
    }
    EXPECT_LT(longest / shortest, 1.2);
  }
}

TEST(ColourMap, NanIsFarFromEveryColour) {
  const auto nan = to_oklab(kNanColour);
  for (const Theme theme : {Theme::kLight, Theme::kDark}) {
    for (const Rgb c : colour_map(theme)) {
      const auto lab = to_oklab(c);
      EXPECT_GT(std::hypot(lab[0] - nan[0], lab[1] - nan[1], lab[2] - nan[2]), 0.15);
    }
  }
}

TEST(ColourIndex, CoversTheRange) {
  EXPECT_EQ(colour_index(0, 1, ColourScale::kSqrt), 0);
  EXPECT_EQ(colour_index(1, 1, ColourScale::kSqrt), kNumColours - 1);
  EXPECT_EQ(colour_index(7, 1, ColourScale::kLinear), kNumColours - 1);
  EXPECT_EQ(colour_index(std::nanf(""), 1, ColourScale::kSqrt), -1);
  EXPECT_EQ(colour_index(0.5f, 0, ColourScale::kSqrt), 0);
  EXPECT_EQ(colour_index(0.25f, 1, ColourScale::kSqrt), colour_index(0.5f, 1, ColourScale::kLinear));
}

TEST(CheckMap, RefusesWhatDoesNotFit) {
  AttentionMap map = causal_map(1, 2, 3, characters("abc"));
  EXPECT_NO_THROW(check_map(map));
  map.key_tokens.pop_back();
  EXPECT_THROW(check_map(map), ShapeError);
  map.key_tokens.clear();
  EXPECT_NO_THROW(check_map(map));
  for (const float bad : {-0.1f, std::numeric_limits<float>::infinity()}) {
    map.weights.data()[0] = bad;
    EXPECT_THROW(check_map(map), OptionError);
  }
  map.weights = Tensor<float>({2, 3, 3});
  EXPECT_THROW(check_map(map), ShapeError);
  map.weights = Tensor<float>({0, 2, 3, 3});
  EXPECT_THROW(check_map(map), ShapeError);
}

TEST(TopWeight, IgnoresNanAndZero) {
  EXPECT_EQ(top_weight(nan_map(), ValueRange::kMax), 1);
  AttentionMap zero = empty_map(2, 2);
  EXPECT_EQ(top_weight(zero, ValueRange::kMax), 1);
  zero.weights.data()[3] = 0.25f;
  EXPECT_EQ(top_weight(zero, ValueRange::kMax), 0.25f);
  EXPECT_EQ(top_weight(zero, ValueRange::kUnit), 1);
}

TEST(TopWeight, IsThatOfTheHeadsThatAreDrawn) {
  AttentionMap map = causal_map(2, 2, 3);
  for (std::size_t n = 0; n < map.weights.span().size(); ++n)
    map.weights.data()[n] = 0.25f * static_cast<float>(1 + n / 9);  // of layer 0: 0.25, 0.5, of layer 1: 0.75, 1
  const auto top = [&](std::vector<Index> layers, std::vector<Index> heads) {
    return top_weight(map, {.layers = std::move(layers), .heads = std::move(heads), .range = ValueRange::kMax});
  };
  EXPECT_EQ(top({}, {}), 1);
  EXPECT_EQ(top({0}, {}), 0.5f);
  EXPECT_EQ(top({0, 1}, {0}), 0.75f);
  EXPECT_EQ(top_weight(map, {.heads = {0}}), 1);
  map.weights.data()[0] = 0;
  map.weights.data()[1] = std::numeric_limits<float>::quiet_NaN();
  const auto said = [&](std::vector<Index> heads) {
    const std::string svg = render_svg(map, {.heads = std::move(heads), .range = ValueRange::kMax});
    return std::pair(svg.find("= 0") != std::string::npos, svg.find(">NaN<") != std::string::npos);
  };
  EXPECT_EQ(said({0}), std::pair(true, true));
  EXPECT_EQ(said({1}), std::pair(false, false)) << "what another head has";
}

TEST(HeadStatistics, NamesWhatAHeadDoes) {
  constexpr Index kLength = 6;
  AttentionMap map = empty_map(kLength, kLength);
  const View<float, 4> w = map.weights.view<4>();
  for (Index i = 0; i < kLength; ++i) {
    w(0, 0, i, std::max<Index>(0, i - 1)) = 1;            // the token before
    for (Index j = 0; j < 4; ++j) w(0, 1, i, j) = 0.25f;  // uniform over four keys
  }
  const HeadStatistics before = head_statistics(map, 0, 0), even = head_statistics(map, 0, 1);
  EXPECT_EQ(before.rows, kLength - 1);
  EXPECT_EQ(before.previous, 1);
  EXPECT_EQ(before.self, 0);
  EXPECT_EQ(before.entropy, 0);
  EXPECT_EQ(before.first, 1.0 / (kLength - 1));
  EXPECT_DOUBLE_EQ(even.entropy, std::log(4.0));
  EXPECT_EQ(even.largest, 0.25);
  EXPECT_EQ(head_statistics(nan_map(), 0, 0).rows, 1);
  EXPECT_EQ(head_statistics(nan_map(), 0, 0).first, 1);
  for (const auto& [layer, head] : {std::pair<Index, Index>{1, 0}, {-1, 0}, {0, 2}, {0, -1}})
    EXPECT_THROW(head_statistics(map, layer, head), OptionError);
}

TEST(Characters, SplitsUtf8AndKeepsBrokenBytes) {
  const std::vector<std::string> expected{"a", "\xe7\x8c\xab", "\xf0\x9f\x90\xb1", "\xff", "\xc0", "\xaf"};
  EXPECT_EQ(characters("a\xe7\x8c\xab\xf0\x9f\x90\xb1\xff\xc0\xaf"), expected);
  EXPECT_EQ(characters("\xed\xa0\x80").size(), 3u);  // a surrogate is not UTF-8
}

TEST(VisibleLabel, ShowsWhatCannotBeSeen) {
  EXPECT_EQ(visible_label("a b\n\t", 9),
      "a\xe2\x90\xa3"
      "b\xe2\x86\xb5\xe2\x87\xa5");
  EXPECT_EQ(visible_label("\x1b[", 9), "U+001B[");
  EXPECT_EQ(visible_label("\xff", 9), "\\xFF");
  EXPECT_EQ(visible_label("", 9), "\"\"");
  EXPECT_EQ(visible_label("abcdef", 4), "abc\xe2\x80\xa6");
  EXPECT_EQ(visible_label("abcd", 4), "abcd");
  EXPECT_EQ(visible_label("\xff\xff\xff", 9, 12), "\\xFF\\xFF\\xFF");
  EXPECT_EQ(visible_label("\xff\xff\xff\xff", 9, 12), "\\xFF\\xFF\xe2\x80\xa6");
  EXPECT_EQ(visible_label("\xe6\x88\x91\xe6\x88\x91z", 9, 5), "\xe6\x88\x91\xe6\x88\x91z");
  EXPECT_EQ(visible_label("\xe6\x88\x91\xe6\x88\x91z", 9, 4), "\xe6\x88\x91\xe2\x80\xa6");
  for (const std::string& token : hostile_tokens()) {
    const std::string visible = visible_label(token, 100);
    for (const Character& c : decode_utf8(visible)) {
      EXPECT_TRUE(c.valid);
      EXPECT_TRUE(c.code >= 0x20 && !(c.code >= 0x7F && c.code <= 0x9F) && c.code != 0x202E && c.code != 0x2028);
    }
    for (const char c : ascii_label(visible)) EXPECT_TRUE(c >= 0x20 && c < 0x7F);
  }
}

TEST(DisplayWidth, CountsWideAndCombining) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("\xe7\x8c\xab"), 2);
  EXPECT_EQ(display_width("e\xcc\x81"), 1);
}

}  // namespace
}  // namespace qkv::view
