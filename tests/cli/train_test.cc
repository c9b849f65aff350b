// `qkv train`, `generate` and `map`: what scripts read, bit-identical runs for the same seed, valid pictures.
#include <cmath>

#include "cli/tool.h"
#include "qkv/io/safetensors.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/trainer.h"
#include "support/random.h"

namespace qkv::test {
namespace {

class Train : public ToolTest {};

TEST_F(Train, JsonHasTheKeysThatScriptsRead) {
  const nlohmann::json run = json("train --steps 40 --seed 3 --json");
  EXPECT_EQ(run["steps"], 40);
  EXPECT_EQ(run["losses"].size(), 40U);
  EXPECT_GT(run["seconds"], 0);
  EXPECT_EQ(run["parameters"], 5063);
  const nlohmann::json& sample = run["sample"];
  EXPECT_EQ(sample["text"], "abababab");
  ASSERT_EQ(sample["weights"].size(), 8U);
  double previous = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    double sum = 0;
    for (const auto& weight : sample["weights"][i]) sum += weight.get<double>();
    EXPECT_NEAR(sum, 1, 1e-6);
    if (i > 0) previous += sample["weights"][i][i - 1].get<double>() / 7;
  }
  EXPECT_NEAR(sample["share"]["previous"], previous, 1e-6);
  for (const char* name : {"self", "previous", "first", "same"}) EXPECT_TRUE(sample["share"][name].is_number()) << name;
}

TEST_F(Train, GivenWeightsAndBatchesAreTheTrainers) {
  const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(lm::default_text());
  lm::AttentionLM model({.vocab_size = tokenizer.vocab_size()}, 5);
  StateDict init = model.state_dict();
  init.metadata["alphabet"] = tokenizer.decode(std::vector<Index>{0, 1, 2, 3, 4, 5, 6});
  io::save_safetensors(path("init.safetensors"), init);
  Tensor<Index> batches({20, 3, 17});
  Random random(1);
  for (Index& id : batches.span()) id = random.below(7);
  save("batches.npy", batches);
  const nlohmann::json run = json("train --init init.safetensors --batches batches.npy --json --steps 20 --tokens 0");
  lm::Trainer trainer(model, {.steps = 20});
  EXPECT_EQ(run["losses"], trainer.run(lm::BatchSource::from_arrays(std::move(batches))).losses);
}

TEST_F(Train, LinesWithoutATerminal) {
  const std::string text = output({"train", "--steps", "20"});
  EXPECT_NE(text.find("\nstep 20  loss "), std::string::npos) << text;
  EXPECT_NE(text.find("attention weights, in percent"), std::string::npos);
  EXPECT_NE(text.find("it continues"), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST_F(Train, TasksSayWhatTheyCount) {
  const nlohmann::json previous = json("train --task previous --steps 50 --json");
  EXPECT_GT(previous["previous"]["mean"], 0);
  EXPECT_EQ(previous["previous"]["rows"].size(), 15U);
  EXPECT_FALSE(previous.contains("fresh"));
  const nlohmann::json masked = json("train --task masked --steps 50 --json");
  EXPECT_FALSE(masked["model"]["causal"].get<bool>());
  EXPECT_GT(masked["fresh"]["targets"], 0);
  write("xyz.txt", "xyzxyzxyzxyzxyzxyz");
  for (const char* task : {"same", "previous"}) {
    const std::string text = output({"train", "--text", "xyz.txt", "--steps", "0", "--task", task});
    EXPECT_NE(text.find(" on random characters of xyz.txt, 0 steps"), std::string::npos) << text;
  }
}

TEST_F(Train, GroupedHeadsAndRotaryPositionsAreSavedWithTheModel) {
  const nlohmann::json run =
      json("train --task previous --heads 4 --kv-heads 2 --positions rotary --steps 200 --out m.safetensors --json");
  EXPECT_EQ(run["model"]["num_kv_heads"], 2);
  EXPECT_EQ(run["model"]["positions"], "rotary");
  EXPECT_EQ(run["parameters"], 5063 - 16 * 32 - 2 * 16 * 32);  // no embedding of positions, k and v of half the width
  EXPECT_LT(run["losses"].back(), 0.5 * run["losses"].front().get<double>());
  EXPECT_EQ(output("generate --model m.safetensors --prompt abc --tokens 20").size(), 3U + 20 + 1);
  output("map m.safetensors --text abcabc --out a.png");
  EXPECT_TRUE(contents(path("a.png")).starts_with("\x89PNG"));
  expect_refused("train --kv-heads 3 --heads 4", {"--kv-heads must divide --heads: got 3 for 4"});
  expect_refused({"train", "--positions", "sinusoidal"}, {"--positions"});
}

/// Two heads appear; without the second one the repetition is not known.
TEST_F(Train, InductionTakesTwoHeads) {
  const Words train("train --task induction --out m.safetensors");
  const nlohmann::json run = json(train + "--json");
  EXPECT_EQ(run["model"]["num_layers"], 2);
  EXPECT_EQ(run["heads"][0]["kind"]["kind"], "previous");
  EXPECT_EQ(run["heads"][1]["kind"]["kind"], "induction");
  for (const std::size_t head : {0U, 1U}) EXPECT_GT(run["heads"][head]["kind"]["share"], 0.8) << head;
  EXPECT_EQ(run["cut"]["without"], "1:0");
  EXPECT_GT(run["fresh"]["accuracy"], 0.97);
  EXPECT_LT(run["cut"]["fresh"]["accuracy"], 0.15);
  const std::string text = output(train);
  EXPECT_NE(text.find("layer 1, head 0: induction "), std::string::npos) << text;
  EXPECT_NE(text.find("without heads 1:0: loss "), std::string::npos) << text;
  EXPECT_EQ(
      output("generate --model m.safetensors --prompt qwertyqwertyq --tokens 5 --greedy"), "qwertyqwertyqwerty\n");
  const nlohmann::json same = json("train --task same --json");
  EXPECT_GT(same["fresh"]["accuracy"], 0.97);
  EXPECT_GT(same["heads"][0]["kind"]["shares"]["duplicate"], 0.8);
  expect_refused("train --task induction --context 3", {"context", "at least 4"});
}

/// Of scores by the thousand exponentials overflow where nothing is subtracted.
TEST_F(Train, KindsOfHugeScores) {
  output("train --task same --out m.safetensors");
  StateDict state = io::load_safetensors(path("m.safetensors"));
  StateDict scaled;
  scaled.metadata = state.metadata;
  for (const StateDict::Entry& entry : state.entries()) {
    Tensor<float> numbers = to_f32(entry.tensor);
    if (entry.name == "attn.W_q.weight") {
      for (float& x : numbers.span()) x *= 1000;
    }
    scaled.add(entry.name, any_tensor(numbers));
  }
  io::save_safetensors(path("m.safetensors"), scaled);
  const nlohmann::json same = json("train --task same --init m.safetensors --steps 0 --json");
  EXPECT_GT(same["heads"][0]["kind"]["shares"]["duplicate"], 0.8);
}

TEST_F(Train, AnUpdateThatDivergesWritesNothing) {
  expect_refused("train --task previous --steps 1 --lr 1e39 --json --out m.safetensors",
      {"is not finite after step 1", "--lr"}, 1);
}

/// A head is cut in the report alone: the model that is trained and written has all of them.
TEST_F(Train, AHeadIsCutAfterTraining) {
  const Words train("train --task previous --steps 200 --heads 2 --layers 2 --lr 0.01 --tokens 0");
  const nlohmann::json whole = json(train + "--json"), run = json(train + "--json --cut 0:0,0:1 --out m.safetensors");
  EXPECT_EQ(run["losses"], whole["losses"]);
  EXPECT_EQ(run["heads"], whole["heads"]);
  EXPECT_EQ(run["cut"]["without"], "0:0,0:1");
  EXPECT_GT(run["fresh"]["accuracy"], 0.5);
  EXPECT_LT(run["cut"]["fresh"]["accuracy"], 0.3) << "nothing is left of the text";
  EXPECT_EQ(run["cut"]["heads"][1], run["heads"][1]) << "the first layer reads what it read";
  EXPECT_NE(run["cut"]["heads"][2], run["heads"][2]);
  const std::string text = output(train + "--cut 0:1");
  EXPECT_NE(text.find("(whole/without the heads that are cut)"), std::string::npos) << text;
  EXPECT_NE(text.find("without heads 0:1: loss "), std::string::npos) << text;
  expect_refused(train + "--cut 2:0", {"--cut", "2 layers of 2 heads", "head 0 of layer 2"});
  expect_refused(train + "--cut 1", {"--cut", "LAYER:HEAD", "got \"1\""});

  const Words generate("generate --model m.safetensors --prompt abc --tokens 40 --seed 2");
  const std::string cut = output(generate + "--cut 0:0,1:1");
  EXPECT_NE(cut, output(generate));
  const lm::Checkpoint model = lm::checkpoint_from_state(io::load_safetensors(path("m.safetensors")));
  const std::vector<Index> ids = lm::generate(
      model.model, model.tokenizer.encode("abc"), {.tokens = 40, .allowed_ids = 7, .seed = 2, .cut = {{0, 0}, {1, 1}}});
  EXPECT_EQ(cut, "abc" + model.tokenizer.decode(ids) + "\n");
  expect_refused(generate + "--cut 0:2", {"--cut: ", "head 2 of layer 0"});
  expect_refused(generate + "--cut 0:1,", {"--cut", "LAYER:HEAD"});
}

TEST_F(Train, TheModelGeneratesAndIsDrawn) {
  output("train --steps 200 --out m.safetensors --map a.png --map a.svg --map a.html");
  EXPECT_TRUE(contents(path("a.png")).starts_with("\x89PNG"));
  EXPECT_NE(contents(path("a.svg")).find("<svg"), std::string::npos);
  EXPECT_NE(contents(path("a.html")).find("<html"), std::string::npos);

  const Words generate{"generate", "--model", "m.safetensors", "--prompt", "abc ab", "--tokens", "50"};
  const std::string text = output(generate);
  EXPECT_TRUE(text.starts_with("abc ab"));
  EXPECT_EQ(text.size(), 6U + 50 + 1);
  EXPECT_EQ(output(generate), text) << "the same seed";
  Words measured = generate;
  measured.push_back("--json");
  const nlohmann::json document = json(measured);
  EXPECT_EQ(document["prompt"].get<std::string>() + document["continuation"].get<std::string>() + "\n", text);
  EXPECT_NE(output(generate + Words{"--seed", "1"}), text);
  expect_refused("generate --model m.safetensors --prompt abQ", {"--prompt", "'Q'", "position 2"});
  expect_refused({"generate", "--model", "m.safetensors", "--prompt", ""}, {"--prompt"});
  expect_refused("generate --model m.safetensors --prompt a --temperature 0", {"--temperature must be above 0"});

  output({"map", "m.safetensors", "--text", "abc xyz", "--out", "b.png"});
  EXPECT_TRUE(contents(path("b.png")).starts_with("\x89PNG"));
  EXPECT_NE(output({"map", "m.safetensors", "--text", "abc xyz"}).find("100"), std::string::npos);
  expect_refused("map m.safetensors --text abcabcabcabcabcabcabc --out c.png", {"--text", "16", "21"});
  expect_refused("map m.safetensors --heads 7 --out c.png", {"--heads must be in 0 .. 0: got 7"});
  expect_refused("map m.safetensors --layers 5", {"--layers must be in 0 .. 0: got 5"});
  output("train --context 4 --steps 1 --out short.safetensors");
  output("map short.safetensors");
  write("xyz.txt", "xyzxyzxyz");
  output("train --text xyz.txt --context 4 --steps 1 --out xyz.safetensors");
  expect_refused("map xyz.safetensors", {"give --text", "abababab", "'x' 'y' 'z'"});

  Tensor<float> weights({2, 3, 3});
  for (Index n = 0; n < weights.count(); ++n) weights.data()[n] = n % 4 == 0 ? 1.0F : 0.0F;
  save("w.npy", weights);
  EXPECT_NE(output("map w.npy --heads 1").find("head 1"), std::string::npos);
}

}  // namespace
}  // namespace qkv::test
