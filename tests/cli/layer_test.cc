// `qkv layer` is the layer of qkv::nn with the same options: bits of outputs, weights and every gradient by its name.
#include "qkv/nn/layer.h"

#include "cli/tool.h"
#include "qkv/io/safetensors.h"
#include "support/storage.h"

namespace qkv::test {
namespace {

using enum RotaryScaling;

/// A layer of [3, 4, 8] with random parameters, and the words that say the same.
struct LayerCase {
  const char* name;
  nn::LayerConfig config;
  const char* words;
  std::vector<Index> keep = {};  ///< sizes of a mask; empty: none
};

const LayerCase kCases[] = {{"v1", {}, ""}, {"v3", {}, "--no-causal", {3, 4}},
    {"v3", {.dropout = 0.1F, .residual_dropout = 0.5F}, "--dropout 0.1 --residual-dropout 0.5", {3, 4, 4}},
    {"v4", {.empty_row = EmptyRow::kNaN}, "--empty-row nan", {3, 1, 4, 4}}, {"self-attention", {.d_k = 5}, "", {3, 4}},
    {"single-head", {}, ""},
    {"mha", {.num_heads = 2, .dropout = 0.25F, .residual_dropout = 0, .causal = true},
        "--heads 2 --causal --dropout 0.25 --residual-dropout 0"},
    {"grouped-query", {.num_heads = 4, .num_kv_heads = 2, .rotary = RotaryOptions{}, .causal = true},
        "--heads 4 --kv-heads 2 --causal --rope base=10000"},
    {"grouped-query",
        {.num_heads = 2,
            .num_kv_heads = 1,
            .head_dim = 16,
            .qk_norm = nn::QkNorm::kHead,
            .norm_eps = 1e-3,
            .rotary = RotaryOptions{.base = 500, .scaling = kYarn, .factor = 4, .original_context = 4096}},
        "--heads 2 --norm-eps 0.001 --rope base=500,scaling=yarn,factor=4,context=4096"},
    {"grouped-query",
        {.num_heads = 1,
            .rotary = RotaryOptions{.rotary_dim = 4,
                .layout = RotaryLayout::kInterleaved,
                .scaling = kLlama3,
                .factor = 8,
                .original_context = 64}},
        "--heads 1 --rope dim=4,layout=interleaved,scaling=llama3,factor=8,context=64"}};

class LayerTool : public ToolTest {
 protected:
  static constexpr Index kBatch = 3, kLength = 4, kWidth = 8;

  /// The files of a layer, and the command line that runs it.
  Words prepare(nn::Layer& layer, const Words& more = {}) const {
    std::uint64_t seed = 3;
    for (const nn::Parameter& one : layer.parameters()) {
      for (Random random(seed++); float& value : one.value) value = static_cast<float>(random.symmetric());
    }
    io::save_safetensors(path("s.safetensors"), layer.state_dict());
    save("x.npy", random_tensor({kBatch, kLength, kWidth}, 1));
    save("g.npy", random_tensor({kBatch, kLength, layer.output_dim()}, 2));
    return Words{"layer", std::string(layer.name())} +
           "--state s.safetensors --x x.npy --out y.npy --dout g.npy --grads grads.safetensors" + more;
  }
  Words prepare(const char* name, const Words& more = {}, Index heads = 0) const {
    return prepare(*nn::make_layer(name, {.embed_dim = kWidth, .num_heads = heads}), more);
  }
};

TEST_F(LayerTool, HasTheBitsOfTheLibrarysLayer) {
  for (LayerCase one : kCases) {
    SCOPED_TRACE(one.name + std::string(" ") + one.words);
    one.config.embed_dim = kWidth;
    const std::unique_ptr<nn::Layer> layer = nn::make_layer(one.name, one.config);
    Words words = prepare(*layer, one.words) + (one.config.dropout ? "--weights w.npy --seed 5" : "--weights w.npy");
    Tensor<float> weights;
    nn::ForwardOptions options{.seed = 5, .weights = &weights};
    Tensor<std::uint8_t> keep;
    if (!one.keep.empty()) {
      keep = Tensor<std::uint8_t>(one.keep);
      for (Index n = 0; n < keep.count(); ++n) keep.data()[n] = n % 3 != 1;
      options.mask = layer->keep(keep);
      save("m.npy", keep);
      words = words + "--keep m.npy";
    }
    EXPECT_EQ(output(words), "");
    layer->train(one.config.dropout.has_value());
    nn::Saved saved;
    const Tensor<float> y = layer->forward(to_f32(load("x.npy")), options, &saved);
    layer->zero_gradients();
    const Tensor<float> dx = layer->backward(to_f32(load("g.npy")), saved);
    const auto same = [](const AnyTensor& made, const Tensor<float>& expected) {
      const Tensor<float> numbers = to_f32(made);
      return numbers.count() == expected.count() &&
             std::memcmp(numbers.data(), expected.data(), numbers.span().size_bytes()) == 0;
    };
    EXPECT_TRUE(same(load("y.npy"), y));
    EXPECT_TRUE(same(load("w.npy"), weights));
    const StateDict gradients = io::load_safetensors(path("grads.safetensors")), own = layer->gradients();
    EXPECT_EQ(gradients.size(), own.size() + 1);
    EXPECT_TRUE(same(gradients.at("x"), dx));
    for (const StateDict::Entry& entry : own.entries())
      EXPECT_TRUE(same(gradients.at(entry.name), to_f32(entry.tensor))) << entry.name;
  }
  const Words layer = "--state s.safetensors --x x.npy --out y.npy";
  for (const auto& [rope, said] : {std::pair("base", "KEY=VALUE"), {"bass=3", "bass"}, {"base=three", "three"},
           {"scaling=cubic", "llama3"}, {"base=-1", "layer: --rope: "}, {"scaling=yarn", "needs context=N"}}) {
    expect_refused("layer grouped-query" + layer + Words{"--heads", "2", "--rope", rope}, {"--rope", said});
  }
  expect_refused("layer grouped-query --heads 4 --kv-heads 3" + layer, {"--kv-heads must divide --heads: got 3 for 4"});
  expect_refused("layer mha --kv-heads 2" + layer, {"--kv-heads", "mha"});
  expect_refused("layer grouped-query --heads 4 --kv-heads 1" + layer, {"--kv-heads must be 4 for --state", "got 1"});
}

TEST_F(LayerTool, NamesWhatDoesNotFit) {
  const Words words = prepare("v1");
  const auto with = [&](const std::string& option, const std::string& value) {
    Words changed = words;
    *(std::ranges::find(changed, option) + 1) = value;
    return changed;
  };
  Words unknown = words;
  unknown[1] = "v9";
  expect_refused(unknown, {"v9", "single-head"});
  save("flat.npy", Tensor<float>({2, 8}));
  save("wide.npy", Tensor<float>({3, 4, 5}));
  expect_refused(with("--x", "flat.npy"), {"flat.npy", "[B, T, E]"});
  expect_refused(with("--x", "wide.npy"), {"wide.npy", "8"});
  expect_refused(with("--dout", "wide.npy"), {"wide.npy", "[3, 4, 8]"});

  StateDict missing, strange;
  const StateDict parameters = io::load_safetensors(path("s.safetensors"));
  for (const StateDict::Entry& entry : parameters.entries()) {
    if (entry.name != "key_proj.bias") missing.add(entry.name, entry.tensor.clone());
    strange.add(entry.name == "key_proj.bias" ? "key_proj.colour" : entry.name, entry.tensor.clone());
  }
  io::save_safetensors(path("missing.safetensors"), missing);
  io::save_safetensors(path("strange.safetensors"), strange);
  expect_refused(with("--state", "missing.safetensors"), {"missing.safetensors", "key_proj.bias"});
  expect_refused(with("--state", "strange.safetensors"), {"strange.safetensors", "key_proj.colour"});
}

TEST_F(LayerTool, CausalIsTheLayersOwnUnlessSaid) {
  for (const auto& [name, own] : {std::pair("single-head", "--causal"), std::pair("v4", "--no-causal")}) {
    SCOPED_TRACE(name);
    const Words words = prepare(name, "--weights w.npy");
    std::vector<std::string> weights;
    for (const char* choice : {"", "--causal", "--no-causal"}) {
      EXPECT_EQ(output(words + choice), "");
      weights.push_back(contents(path("w.npy")));
    }
    EXPECT_EQ(weights[0], weights[std::string(own) == "--causal" ? 1 : 2]);
    EXPECT_NE(weights[1], weights[2]);
  }
}

TEST_F(LayerTool, RefusesWhatTheLayerHasNot) {
  expect_refused(prepare("v4", "--heads 2"), {"--heads", "v4"});
  expect_refused("layer average --x x.npy --out y.npy --causal", {"no mask", "causal"});
  expect_refused("layer v9 --x x.npy --out y.npy", {"v9", "single-head"});
  save("mask.npy", Tensor<float>({3, 4, 5}));
  expect_refused("layer v4 --state s.safetensors --x x.npy --out y.npy --keep mask.npy", {"mask.npy", "[3, 4, 5]"});
}

/// No file says how many heads there are, and each number that fits gives another output.
TEST_F(LayerTool, HeadsAreRequired) {
  Words words = prepare("mha", {}, 2);
  expect_refused(words, {"--heads is required for mha", "s.safetensors", "allow 1, 2, 4, 8\n"});
  expect_refused(words + "--heads 3", {"--heads must be one of 1, 2, 4, 8 for --state", "got 3"});
  expect_refused(words + "--heads 2 --dropout 2", {"--dropout must be a number from 0 to 1: got \"2\""});
  words[1] = "grouped-query";
  expect_refused(words, {"--heads is required for grouped-query", "1, 2, 4, 8\n"});
}

/// As many sequences as tokens: a [T, T] mask may be either.
TEST_F(LayerTool, ASquareMaskMustNameItsAxes) {
  prepare("v4");
  Tensor<float> x({3, 3, 8}), mask({3, 3});
  for (Index n = 0; n < x.count(); ++n) x.data()[n] = static_cast<float>(n % 7) / 7;
  for (Index i = 0; i < 3; ++i) {
    for (Index j = 0; j <= i; ++j) mask.view<2>()(i, j) = 1;
  }
  save("x.npy", x);
  save("m.npy", mask);
  const Words layer = "layer v4 --state s.safetensors --x x.npy --out y.npy";
  expect_refused(layer + "--keep m.npy", {"m.npy", "--mask-axes bk", "--mask-axes qk", "[3, 3]"});
  expect_refused(layer + "--drop m.npy", {"m.npy", "--mask-axes"});
  output(layer + "--causal");
  const std::string causal = contents(path("y.npy"));
  output(layer + "--keep m.npy --mask-axes qk");
  EXPECT_EQ(contents(path("y.npy")), causal);
  output(layer + "--keep m.npy --mask-axes bk");
  EXPECT_NE(contents(path("y.npy")), causal);
  save("wide.npy", Tensor<float>({2, 6}));
  expect_refused(layer + "--keep wide.npy", {"wide.npy", "got [2, 6]", "[3, 1, 3, 3]"});
}

TEST_F(LayerTool, AppliedIsWeightsTimesDropout) {
  output(prepare("mha", "--heads 2 --causal --dropout 0.25 --weights w.npy --applied a.npy", 2));
  const Tensor<float> weights = to_f32(load("w.npy")), applied = to_f32(load("a.npy"));
  Index dropped = 0;
  for (Index n = 0; n < weights.count(); ++n) {
    const float w = weights.data()[n], a = applied.data()[n];
    if (w > 0 && a == 0) ++dropped;
    if (a != 0) {
      EXPECT_NEAR(static_cast<double>(a / w), 1 / 0.75, 1e-5);
    }
  }
  EXPECT_GT(dropped, 0);
}

}  // namespace
}  // namespace qkv::test
