// GroupedQueryAttention against Hugging Face's Llama, Qwen 3, OLMo 2, StableLM and GPT-J: outputs, weights and every
// gradient, with every scaling of rotary positions. BERT is MultiHeadAttention: layer_test.cc.
#include <gtest/gtest.h>

#include <map>

#include "golden/golden_layer.h"
#include "qkv/nn/self_attention.h"

namespace qkv {
namespace {

/// "base=10000,layout=half" as the options of a layer and the position of its first token.
class Rope {
 public:
  explicit Rope(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
      values_[text.substr(at, equals - at)] = text.substr(equals + 1, end - equals - 1);
      at = end + 1;
    }
  }

  RotaryOptions options() const {
    const std::map<std::string, RotaryScaling> scalings = {{"", RotaryScaling::kNone},
        {"linear", RotaryScaling::kLinear}, {"ntk", RotaryScaling::kNtk}, {"yarn", RotaryScaling::kYarn},
        {"llama3", RotaryScaling::kLlama3}};
    RotaryOptions made;
    made.rotary_dim = whole("dim", 0);
    made.base = values_.contains("base") ? std::stod(text("base")) : 10000;
    made.layout = text("layout") == "interleaved" ? RotaryLayout::kInterleaved : RotaryLayout::kHalfSplit;
    made.scaling = scalings.at(text("scaling"));
    made.factor = static_cast<double>(whole("factor", 1));
    made.original_context = whole("context", 0);
    return made;
  }
  Index offset() const { return whole("offset", 0); }

 private:
  std::string text(const std::string& key) const { return values_.contains(key) ? values_.at(key) : ""; }
  Index whole(const std::string& key, Index otherwise) const {
    return values_.contains(key) ? std::stoll(text(key)) : otherwise;
  }

  std::map<std::string, std::string> values_;
};

class GroupedGolden : public testing::TestWithParam<std::string> {};

TEST_P(GroupedGolden, OutputsAndGradients) {
  const golden::File file(GetParam());
  const Rope rope(file.fact("rope"));
  nn::LayerConfig config;
  config.num_heads = static_cast<Index>(file.number("heads"));
  config.causal = true;
  config.norm_eps = file.number("norm_eps") > 0 ? file.number("norm_eps") : 1e-6;
  config.rotary = rope.options();
  const std::unique_ptr<nn::Layer> layer = nn::load_layer("grouped-query", file.parameters(), config);
  const auto& attention = dynamic_cast<const nn::GroupedQueryAttention&>(*layer);
  EXPECT_EQ(attention.num_kv_heads(), static_cast<Index>(file.number("kv_heads")));

  golden::expect_golden_layer(file, *layer, {.positions = {.offset = rope.offset()}});
}

INSTANTIATE_TEST_SUITE_P(Files, GroupedGolden, testing::ValuesIn(golden::File::of_kind("grouped")),
    [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace qkv
