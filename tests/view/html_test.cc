// The page makes no network request, keeps hostile text inside strings, and stores the weights within its stated error.
#include "qkv/view/html.h"

#include <gtest/gtest.h>

#include <cmath>

#include "maps.h"

namespace qkv::view {
namespace {

std::string decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(kDigits.find(c));
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return out;
}

/// The text between `before` and `after`.
std::string between(const std::string& page, const std::string& before, const std::string& after) {
  const std::size_t begin = page.find(before) + before.size();
  return page.substr(begin, page.find(after, begin) - begin);
}

/// All weights of the page, in the order [L, H, Tq, Tk], decoded as its script does.
std::vector<double> weights_of(const std::string& page) {
  const bool is_float16 = page.find("format:\"float16\"") != std::string::npos;
  const double peak = std::stod(between(page, "peak:", ","));
  std::vector<double> out;
  const std::string data = between(page, "\ndata:", "\n}");
  // Each string between two quotes. Not std::regex, which recurses once per character: a page would overflow the stack.
  for (std::size_t open = data.find('"'); open != std::string::npos;) {
    const std::size_t close = data.find('"', open + 1);
    const std::string bytes = decode_base64(std::string_view(data).substr(open + 1, close - open - 1));
    open = data.find('"', close + 1);
    const auto byte = [&bytes](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[i])); };
    for (std::size_t i = 0; i < bytes.size(); i += is_float16 ? 2 : 1) {
      const unsigned h = is_float16 ? byte(i) | byte(i + 1) << 8 : byte(i);
      const int exponent = static_cast<int>(h >> 10 & 31);
      const double fraction = (h & 1023) / 1024.0;
      const double half = exponent == 31 ? std::nan("")
                          : exponent     ? std::ldexp(1 + fraction, exponent - 15)
                                         : std::ldexp(fraction, -14);
      out.push_back(peak * (is_float16 ? half : h == 255 ? std::nan("") : std::pow(h / 254.0, 2)));
    }
  }
  return out;
}

void expect_weights(const AttentionMap& map, HtmlPrecision precision, double bound) {
  const std::string page = render_html(map, {.precision = precision});
  const std::vector<double> decoded = weights_of(page);
  ASSERT_EQ(static_cast<Index>(decoded.size()), map.weights.count());
  double largest = 0;
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    const double expected = static_cast<double>(map.weights.data()[i]);
    ASSERT_EQ(std::isnan(decoded[i]), std::isnan(expected)) << i;
    if (!std::isnan(expected)) largest = std::max(largest, std::abs(decoded[i] - expected));
  }
  EXPECT_LE(largest, bound);
  const double stated = std::stod(between(page, "error:", ","));
  EXPECT_NEAR(stated, largest, 1e-8 * (1 + largest)) << "the page must state the error that was made";
}

TEST(Html, HoldsTheWeightsWithinItsError) {
  AttentionMap all_sizes = empty_map(64, 64);  // 2 heads: exact zeros, and values over nine decades
  for (Index i = 1; i < all_sizes.weights.count(); ++i)
    all_sizes.weights.data()[i] = static_cast<float>(std::exp(-static_cast<double>(i) / 400));
  const double peak = static_cast<double>(top_weight(all_sizes, ValueRange::kMax));
  const double byte_bound = (peak + peak / 1016) / 254;
  expect_weights(all_sizes, HtmlPrecision::kFloat16, peak / 4096);
  expect_weights(all_sizes, HtmlPrecision::kSqrtByte, byte_bound);
  AttentionMap tall = empty_map(2, 2);
  tall.weights.data()[1] = 1000;  // a weight after dropout may be large
  tall.weights.data()[2] = 1.5f;
  expect_weights(tall, HtmlPrecision::kFloat16, 1000.0 / 4096);
  for (const HtmlPrecision precision : {HtmlPrecision::kFloat16, HtmlPrecision::kSqrtByte}) {
    expect_weights(causal_map(2, 3, 17), precision, byte_bound * 1.001);
    expect_weights(nan_map(), precision, 0);
    expect_weights(causal_map(1, 1, 1), precision, 0);
    expect_weights(empty_map(0, 3), precision, 0);
    expect_weights(empty_map(3, 0), precision, 0);
  }
}

TEST(Html, ChoosesItsPrecisionBySize) {
  EXPECT_NE(render_html(causal_map(1, 4, 256)).find("format:\"float16\""), std::string::npos);
  EXPECT_NE(render_html(causal_map(1, 5, 256)).find("format:\"sqrt-byte\""), std::string::npos);
  EXPECT_LT(render_html(causal_map(1, 5, 256)).size(), 5u * 256 * 256 * 4 / 3 + 30'000);
}

TEST(Html, AsksTheNetworkForNothing) {
  const std::string page = render_html(causal_map(2, 2, 4, characters("abcd"), "t"));
  EXPECT_NE(page.find("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"),
            std::string::npos);
  for (const char* wish : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest", "import("}) {
    EXPECT_EQ(page.find(wish), std::string::npos) << wish;
  }
}

TEST(Html, HostileTokensStayStrings) {
  const std::string page = render_html(causal_map(1, 1, 8, hostile_tokens(), "</title>" + hostile_tokens()[5]));
  const auto count = [&page](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<script"), 1u);
  EXPECT_EQ(count("</script"), 1u);
  EXPECT_EQ(count("</title"), 1u);
  EXPECT_EQ(count("<img"), 0u);
  for (const char c : page) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
  EXPECT_NE(page.find("\\u003Cscript\\u003E"), std::string::npos);
}

TEST(Html, KeepsChosenHeadsInTheirOrder) {
  const AttentionMap map = causal_map(2, 3, 4);
  HtmlOptions options;
  options.map.layers = {1};
  options.map.heads = {2, 0};
  const std::string page = render_html(map, options);
  EXPECT_NE(page.find("layers:[1],heads:[2,0]"), std::string::npos);
  const std::vector<double> decoded = weights_of(page);
  ASSERT_EQ(decoded.size(), 32u);
  EXPECT_NEAR(decoded[4], static_cast<double>(map.weights.view<4>()(1, 2, 1, 0)), 1.0 / 4096);
}

}  // namespace
}  // namespace qkv::view
