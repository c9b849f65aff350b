// `qkv layer` against PyTorch's files: outputs, weights and every gradient by its name in the file.
#include "cli/tool.h"
#include "golden/golden.h"
#include "qkv/io/safetensors.h"
#include "qkv/nn/latent_attention.h"

namespace qkv::test {
namespace {

class LayerTool : public ToolTest {
 protected:
  /// The files of a golden case, and the command line that runs it: a layer of the ladder, or Hugging Face's
  /// grouped-query.
  Words prepare(const golden::File& file) const {
    const bool grouped = file.fact("kind") == "grouped";
    io::save_safetensors(path("s.safetensors"), file.parameters());
    save("x.npy", file.f32("x"));
    save("g.npy", file.f32("dout"));
    Words words = Words{"layer", grouped ? "grouped-query" : file.fact("layer"), "--heads", file.fact("heads")} +
                  "--state s.safetensors --x x.npy --out y.npy --dout g.npy --grads grads.safetensors";
    if (file.has("mask")) {
      io::save_npy(path("m.npy"), file.tensors().at("mask"));
      words = words + "--keep m.npy";
    }
    if (grouped) {
      words = words + Words{"--causal", "--kv-heads", file.fact("kv_heads"), "--rope", file.fact("rope")};
      return file.number("norm_eps") > 0 ? words + Words{"--norm-eps", file.fact("norm_eps")} : words;
    }
    words = words + Words{"--weights", "w.npy", file.number("causal") != 0 ? "--causal" : "--no-causal", "--empty-row",
                        file.fact("fill") == "-inf" ? "nan" : "mean"};
    if (file.fact("mode") != "train") return words;
    return words + Words{"--dropout", file.fact("dropout"), "--residual-dropout", file.fact("residual"), "--seed",
                       file.fact("seed")};
  }
};

/// Key/value heads of Hugging Face's modules from the file, their rotary positions from one option.
TEST_F(LayerTool, HoldsPyTorchsAndHuggingFacesValues) {
  for (const char* name : {"v1_3x2x4", "v3_3x4x2_ragged_bk", "v3_3x4x2_ragged_train", "self_attention_3x4x2_ragged",
           "single_head_3x2x4", "mha_3x2x4_in_proj", "mha_3x2x6_nan_train", "mha_2x5x6_causal_train", "hf_llama",
           "hf_llama_yarn", "hf_llama_llama3", "hf_qwen3", "hf_olmo2", "hf_gptj"}) {
    SCOPED_TRACE(name);
    const golden::File file(name);
    EXPECT_EQ(output(prepare(file)), "");
    const auto holds = [&](const std::string& of, const AnyTensor& tensor) {
      EXPECT_LE(file.ratio(of, to_f32(tensor).span()), 1) << of;
    };
    holds("out", load("y.npy"));
    if (file.fact("kind") == "layer") holds("weights", load("w.npy"));
    const StateDict gradients = io::load_safetensors(path("grads.safetensors"));
    EXPECT_EQ(gradients.size(), file.names("grad.").size());
    for (const StateDict::Entry& entry : gradients.entries()) holds("grad." + entry.name, entry.tensor);
  }
  const Words layer = "--state s.safetensors --x x.npy --out y.npy";
  for (const auto& [rope, said] :
      {std::pair("base", "KEY=VALUE"), {"bass=3", "bass"}, {"base=three", "three"}, {"scaling=cubic", "llama3"}}) {
    expect_refused("layer grouped-query" + layer + Words{"--rope", rope}, {"--rope", said});
  }
  expect_refused("layer mha --kv-heads 2" + layer, {"--kv-heads", "mha"});
}

TEST_F(LayerTool, NamesWhatDoesNotFit) {
  const golden::File file("v1_3x2x4");
  const Words words = prepare(file);
  const auto with = [&](const std::string& option, const std::string& value) {
    Words changed = words;
    *(std::ranges::find(changed, option) + 1) = value;
    return changed;
  };
  Words unknown = words;
  unknown[1] = "v9";
  expect_refused(unknown, {"v9", "single-head"});
  save("flat.npy", Tensor<float>({2, 4}));
  save("wide.npy", Tensor<float>({3, 2, 5}));
  expect_refused(with("--x", "flat.npy"), {"flat.npy", "[B, T, E]"});
  expect_refused(with("--x", "wide.npy"), {"wide.npy", "4"});
  expect_refused(with("--dout", "wide.npy"), {"wide.npy", "[3, 2, 4]"});

  StateDict missing, strange;
  const StateDict parameters = file.parameters();
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
  for (const auto& [name, own] : {std::pair("single_head_3x2x4", "--causal"), std::pair("v4_3x2x4", "--no-causal")}) {
    SCOPED_TRACE(name);
    Words words = prepare(golden::File(name));
    const auto said = std::ranges::find_if(words, [](const std::string& word) { return word.ends_with("causal"); });
    std::vector<std::string> weights;
    for (const std::string choice : {"", "--causal", "--no-causal"}) {
      Words chosen = words;
      const auto place = chosen.begin() + (said - words.begin());
      if (choice.empty()) {
        chosen.erase(place);
      } else {
        *place = choice;
      }
      EXPECT_EQ(output(chosen), "");
      weights.push_back(contents(path("w.npy")));
    }
    EXPECT_EQ(weights[0], weights[std::string(own) == "--causal" ? 1 : 2]);
    EXPECT_NE(weights[1], weights[2]);
  }
}

TEST_F(LayerTool, RefusesWhatTheLayerHasNot) {
  Words words = prepare(golden::File("v4_3x2x4"));
  *(std::ranges::find(words, "--heads") + 1) = "2";
  expect_refused(words, {"--heads", "v4"});
  expect_refused("layer average --x x.npy --out y.npy --causal", {"no mask", "causal"});
  expect_refused("layer v9 --x x.npy --out y.npy", {"v9", "single-head"});
  save("mask.npy", Tensor<float>({3, 4, 5}));
  expect_refused("layer v4 --state s.safetensors --x x.npy --out y.npy --keep mask.npy", {"mask.npy", "[3, 4, 5]"});
}

/// No file says how many heads there are, and each number that fits gives another output.
TEST_F(LayerTool, HeadsAreRequired) {
  Words words = prepare(golden::File("mha_3x2x4_in_proj"));
  const auto heads = std::ranges::find(words, "--heads");
  words.erase(heads, heads + 2);
  expect_refused(words, {"--heads is required for mha", "s.safetensors", "allow 1, 2, 4\n"});
  words[1] = "grouped-query";
  expect_refused(words, {"--heads is required for grouped-query", "1, 2, 4\n"});
}

/// As many sequences as tokens: a [T, T] mask may be either.
TEST_F(LayerTool, ASquareMaskMustNameItsAxes) {
  const golden::File file("v4_3x2x4");
  prepare(file);
  Tensor<float> x({3, 3, 4}), mask({3, 3});
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
  output(prepare(golden::File("mha_2x5x6_causal_train")) + Words{"--applied", "a.npy"});
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

/// Every size from the shapes in the file: the bits of the layer that wrote it.
TEST_F(LayerTool, LatentIsTheLayerThatWroteTheFile) {
  for (const Index rank : {0, 10}) {
    nn::MultiHeadLatentAttention layer({.embed_dim = 12,
        .num_heads = 3,
        .q_lora_rank = rank,
        .kv_lora_rank = 7,
        .qk_nope_head_dim = 5,
        .qk_rope_head_dim = 4,
        .v_head_dim = 6,
        .bias = rank != 0,
        .rotary = {.base = 500, .layout = RotaryLayout::kInterleaved},
        .seed = 3});
    io::save_safetensors(path("s.safetensors"), layer.state_dict());
    Tensor<float> x({2, 5, 12}), y(x.sizes()), dx(x.sizes());
    for (Index n = 0; n < x.count(); ++n) x.data()[n] = static_cast<float>(n % 7) - 3;
    nn::LatentSaved saved;
    layer.forward(x, y, saved);
    layer.zero_gradients();
    layer.backward(x, saved, dx);
    save("x.npy", x);
    const Words words =
        "layer latent --state s.safetensors --x x.npy --out y.npy --rope base=500 --dout x.npy --grads "
        "grads.safetensors";
    output(words);
    const Tensor<float> made = to_f32(load("y.npy"));
    EXPECT_TRUE(std::ranges::equal(made.span(), y.span()));
    const StateDict gradients = io::load_safetensors(path("grads.safetensors")), own = layer.gradients();
    EXPECT_EQ(gradients.size(), own.size() + 1);
    EXPECT_TRUE(std::ranges::equal(to_f32(gradients.at("x")).span(), dx.span()));
    for (const StateDict::Entry& entry : own.entries()) {
      EXPECT_TRUE(std::ranges::equal(to_f32(gradients.at(entry.name)).span(), to_f32(entry.tensor).span()))
          << entry.name;
    }
    EXPECT_EQ(output(words + "--heads 3 --no-causal"), "");
    EXPECT_FALSE(std::ranges::equal(to_f32(load("y.npy")).span(), y.span()));
    expect_refused(words + "--heads 2", {"--heads", "3: got 2"});
    expect_refused(words + "--weights w.npy", {"latent", "--weights"});
    expect_refused(words + "--kv-heads 1", {"--kv-heads", "latent"});
  }
  io::save_safetensors(path("s.safetensors"), golden::File("v1_3x2x4").parameters());
  expect_refused("layer latent --state s.safetensors --x x.npy --out y.npy", {"kv_a_proj_with_mqa.weight"});
}

}  // namespace
}  // namespace qkv::test
