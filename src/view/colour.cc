// The colour maps of attention pictures. OKLab to sRGB: Ottosson 2020, https://bottosson.github.io/posts/oklab/;
// transfer curve: IEC 61966-2-1.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {
namespace {

struct Lab {
  double lightness, a, b;
};

/// A curve through OKLab from u = 0, its light end, to u = 1, its dark end. Both themes share hue and chroma, so that a
/// picture keeps its hues on the other background. Every point lies inside the sRGB gamut.
Lab curve(double u, double light, double dark) {
  const double hue = (105 + 195 * u) * std::numbers::pi / 180;  // yellow, green, blue, violet
  // near grey only where it is near white
  const double chroma = 0.008 + 0.08 * (1 - (1 - u) * (1 - u) * (1 - u)) + 0.025 * u;
  return {light + (dark - light) * u, chroma * std::cos(hue), chroma * std::sin(hue)};
}

std::uint8_t to_srgb_byte(double linear) {
  const double x = std::clamp(linear, 0.0, 1.0);
  const double encoded = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return static_cast<std::uint8_t>(std::lround(255 * encoded));
}

Rgb to_rgb(const Lab& c) {
  const double l = std::pow(c.lightness + 0.3963377774 * c.a + 0.2158037573 * c.b, 3);
  const double m = std::pow(c.lightness - 0.1055613458 * c.a - 0.0638541728 * c.b, 3);
  const double s = std::pow(c.lightness - 0.0894841775 * c.a - 1.2914855480 * c.b, 3);
  return {to_srgb_byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
      to_srgb_byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
      to_srgb_byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

/// Points at equal distances along the curve, measured on a polygon of 4096 pieces (its length is within 1e-7 of the
/// arc's).
std::array<Rgb, kNumColours> sample_evenly(double light, double dark, bool from_light) {
  constexpr int kPieces = 4096;
  std::vector<double> length(kPieces + 1, 0.0);
  Lab before = curve(0, light, dark);
  for (int i = 1; i <= kPieces; ++i) {
    const Lab here = curve(static_cast<double>(i) / kPieces, light, dark);
    length[static_cast<std::size_t>(i)] =
        length[static_cast<std::size_t>(i - 1)] +
        std::hypot(here.lightness - before.lightness, here.a - before.a, here.b - before.b);
    before = here;
  }
  std::array<Rgb, kNumColours> colours;
  for (int n = 0; n < kNumColours; ++n) {
    const double wanted = length.back() * n / (kNumColours - 1);
    const auto above = std::lower_bound(length.begin(), length.end(), wanted);
    const double u = static_cast<double>(above - length.begin()) / kPieces;
    colours[static_cast<std::size_t>(from_light ? n : kNumColours - 1 - n)] = to_rgb(curve(u, light, dark));
  }
  return colours;
}

}  // namespace

const std::array<Rgb, kNumColours>& colour_map(Theme theme) {
  static const auto kOnLight = sample_evenly(0.985, 0.28, true);
  static const auto kOnDark = sample_evenly(0.96, 0.26, false);
  return theme == Theme::kLight ? kOnLight : kOnDark;
}

int colour_index(float weight, float top, ColourScale scale) {
  if (std::isnan(weight)) return -1;
  if (!(top > 0)) return 0;
  const double share = std::clamp(static_cast<double>(weight) / static_cast<double>(top), 0.0, 1.0);
  const double level = scale == ColourScale::kSqrt ? std::sqrt(share) : share;
  return static_cast<int>(std::lround(level * (kNumColours - 1)));
}

}  // namespace qkv::inline v0::view
