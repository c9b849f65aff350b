// A map as the explorer's file and page: the weights within the stated error, hostile text inside its elements, no
// request.
#include <gtest/gtest.h>

#include <cmath>

#include "maps.h"
#include "qkv/view/explorer.h"
#include "qkv/view/pictures.h"

namespace qkv::view {
namespace {

/// The weights [n, Tq, Tk] of a layer, as the page reads them.
std::vector<double> weights_of(const StateDict& file, Index layer) {
  const std::string at = "0/" + std::to_string(layer) + "/weights";
  const AnyTensor& stored = file.at(at);
  const Tensor<float> numbers = to_f32(stored),
                      peaks = stored.dtype == DType::kU8 ? to_f32(file.at(at + "_peak")) : Tensor<float>();
  std::vector<double> all;
  for (Index i = 0; i < numbers.count(); ++i) {
    const auto code = static_cast<double>(numbers.data()[i]);
    if (stored.dtype == DType::kF16) {
      all.push_back(code);
    } else {
      const double peak = static_cast<double>(peaks.data()[i / (stored.sizes[1] * stored.sizes[2])]);
      all.push_back(code == 255 ? std::nan("") : peak * std::pow(code / 254, 2));
    }
  }
  return all;
}

std::string json_of(const StateDict& file) { return file.metadata.at("explorer"); }

void expect_weights(const AttentionMap& map, double bound) {
  const StateDict file = explorer_of_map(map);
  double largest = 0;
  for (Index l = 0; l < map.num_layers(); ++l) {
    const std::vector<double> decoded = weights_of(file, l);
    const Index each = map.weights.count() / map.num_layers();
    ASSERT_EQ(static_cast<Index>(decoded.size()), each);
    for (Index i = 0; i < each; ++i) {
      const double got = decoded[static_cast<std::size_t>(i)],
                   expected = static_cast<double>(map.weights.data()[l * each + i]);
      ASSERT_EQ(std::isnan(got), std::isnan(expected)) << i;
      ASSERT_EQ(got == 0, expected == 0) << i << ": exactly 0 is said of masked keys";
      if (!std::isnan(expected)) largest = std::max(largest, std::abs(got - expected));
    }
  }
  EXPECT_LE(largest, bound);
  const std::string json = json_of(explorer_of_map(map)), name = "\"errors\":{\"weights\":";
  double stated = 0;
  for (std::size_t at = json.find(name); at != std::string::npos; at = json.find(name, at + 1))
    stated = std::max(stated, std::stod(json.substr(at + name.size())));
  EXPECT_EQ(stated, largest) << "the page must state the error that was made";
}

TEST(Html, HoldsTheWeightsWithinItsError) {
  AttentionMap all_sizes = empty_map(64, 64);  // 2 heads: exact zeros, and values over nine decades
  for (Index i = 1; i < all_sizes.weights.count(); ++i)
    all_sizes.weights.data()[i] = static_cast<float>(std::exp(-static_cast<double>(i) / 400));
  expect_weights(all_sizes, 1.0 / 4096);
  AttentionMap tall = empty_map(2, 2);
  tall.weights.data()[1] = 1000;  // a weight after dropout may be large
  tall.weights.data()[2] = 1.5f;
  expect_weights(tall, 1000.0 / 4096);
  tall.weights.data()[3] = 1e6f;  // more than 16 bits hold
  expect_weights(tall, 1e6 * (1 + 1.0 / 254) / 254);
  expect_weights(causal_map(1, 5, 256), (1 + 1.0 / 254) / 254 * 1.001);
  expect_weights(causal_map(2, 3, 17), 1.0 / 4096);
  for (const AttentionMap& exact : {nan_map(), causal_map(1, 1, 1), empty_map(0, 3), empty_map(3, 0)})
    expect_weights(exact, 0);
}

TEST(Html, ChoosesItsPrecisionBySize) {
  EXPECT_EQ(explorer_of_map(causal_map(1, 4, 256)).at("0/0/weights").dtype, DType::kF16);
  EXPECT_EQ(explorer_of_map(causal_map(1, 5, 256)).at("0/0/weights").dtype, DType::kU8);
}

TEST(Html, HostileTokensStayInTheirElements) {
  const std::string page = render_html(causal_map(1, 1, 8, hostile_tokens(), "</title>{{data}}" + hostile_tokens()[5]));
  const std::string plain = render_html(causal_map(1, 1, 8));
  const auto count = [](const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  for (const char* mark : {"<script", "</script", "</title", "<img"})
    EXPECT_EQ(count(page, mark), count(plain, mark)) << mark;
  EXPECT_NE(page.find("&lt;/title&gt;{{data}}"), std::string::npos) << "what a title holds is put in as it is";
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("data-name=\"0/0/weights\" data-dtype=\"F16\" data-sizes=\"1,8,8\""), std::string::npos);
  for (const char c : page) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
}

TEST(Html, KeepsChosenHeadsInTheirOrderAndTheirNumbers) {
  const AttentionMap map = causal_map(2, 3, 4);
  const StateDict file = explorer_of_map(map, {.layers = {1}, .heads = {2, 0}, .range = ValueRange::kMax});
  EXPECT_NE(json_of(file).find("\"head_numbers\":[2,0],\"heads\":2"), std::string::npos) << json_of(file);
  EXPECT_NE(json_of(file).find("\"number\":1"), std::string::npos);
  EXPECT_NE(json_of(file).find("\"start\":\"range=max&spacing=sqrt\""), std::string::npos);
  const std::vector<double> decoded = weights_of(file, 0);
  ASSERT_EQ(decoded.size(), 32u);
  EXPECT_NEAR(decoded[4], static_cast<double>(map.weights.view<4>()(1, 2, 1, 0)), 1.0 / 4096);
  EXPECT_THROW(explorer_of_map(map, {.layers = {2}}), OptionError);
}

}  // namespace
}  // namespace qkv::view
