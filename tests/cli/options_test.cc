// Options without effect beside the others are refused in one line: nothing that a person types is ignored silently.
#include "cli/tool.h"
#include "qkv/io/safetensors.h"

namespace qkv::test {
namespace {

class Options : public ToolTest {
 protected:
  /// Input arrays of one small call of attend.
  Words attend(const Words& more) const {
    save("x.npy", Tensor<float>({1, 1, 3, 2}));
    return Words{"attend", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "out.npy"} + more;
  }
};

TEST_F(Options, ATrainedModelSettlesWhatItIs) {
  output("train --steps 2 --out m.safetensors");
  const auto refused = [&](const Words& more, const Words& fragments) {
    const Words all = Words{"train", "--init", "m.safetensors", "--steps", "1"} + more;
    Words says = fragments;
    says.emplace_back("m.safetensors");
    expect_refused(all, says);
  };
  refused({"--heads", "4"}, {"--heads 4", "has 1"});
  refused({"--kv-heads", "2"}, {"--kv-heads 2", "has 1"});
  refused({"--dim", "64"}, {"--dim 64", "has 32"});
  refused({"--context", "8"}, {"--context 8", "has 16"});
  refused({"--layers", "3"}, {"--layers 3", "has 1"});
  refused({"--blocks"}, {"--blocks", "has none"});
  output("train --steps 0 --blocks --dim 8 --out b.safetensors");
  expect_refused("train --init b.safetensors --no-blocks", {"--no-blocks", "b.safetensors", "has blocks"});
  refused({"--positions", "rotary"}, {"--positions rotary", "learned"});
  refused({"--rope", "base=5"}, {"--rope", "learned"});
  refused({"--task", "masked"}, {"--task masked", "--task text"});
  write("other.txt", "ABCDEFG ABCDEFG gfedcba ABCDEFG");  // other characters, and more of them
  refused({"--text", "other.txt"}, {"characters"});
  write("moved.txt", "123456 654321 112233 445566 123456");  // seven characters, as many as the model knows, but others
  refused({"--text", "moved.txt"}, {"characters"});

  const auto train = [&](const Words& more) {
    return json(Words{"train", "--init", "m.safetensors", "--steps", "3", "--json"} + more);
  };
  const nlohmann::json plain = train({});
  EXPECT_EQ(
      train({"--heads", "1", "--dim", "32", "--positions", "learned", "--layers", "1"})["losses"], plain["losses"]);
  const nlohmann::json dropped = train({"--dropout", "0.5"});  // a property of training, not of the model
  EXPECT_EQ(dropped["model"]["dropout"], 0.5);
  EXPECT_NE(dropped["losses"], plain["losses"]);
}

/// Of two spellings the last one counts; what may be given once is refused again; an empty value is not the next
/// word.
TEST_F(Options, RepeatedAndEmpty) {
  const auto blocks = [&](const Words& more) {
    return json(Words("train --steps 0 --dim 8 --json") + more)["model"]["blocks"].get<bool>();
  };
  EXPECT_TRUE(blocks("--no-blocks --blocks"));
  EXPECT_TRUE(blocks("--blocks --no-blocks --blocks"));
  EXPECT_FALSE(blocks("--blocks --blocks --no-blocks"));
  expect_refused(attend("--weights a.npy --weights b.npy"), {"--weights must be given once"});
  expect_refused(attend("--lse a.npy --lse b.npy"), {"--lse must be given once"});
  expect_refused(attend("--scale 1 --scale 2"), {"--scale must be given once"});
  expect_refused(attend("--lse"), {"--lse needs a value: FILE"});
  expect_refused(attend("--causal=top-left --causal"), {"--causal must be given once"});
  expect_refused("ablate --out= no-scale", {"--out needs a value"});
  expect_refused("generate --model m.safetensors --prompt= --greedy", {"--prompt needs a value"});
  expect_refused("train --out= --json", {"--out needs a value"});
  expect_refused("train --blocks= --steps 0", {"--blocks= has no value behind its ="});
  expect_refused(attend("--lse= --causal"), {"--lse needs a value"});
  expect_refused(attend("--causal="), {"--causal= has no value behind its ="});
}

TEST_F(Options, OfTrainThatItsTaskHasNoUseFor) {
  save("b.npy", Tensor<Index>({2, 1, 17}));
  for (const char* task : {"previous", "same", "masked", "induction"})
    expect_refused({"train", "--task", task, "--batches", "b.npy"}, {"--batches", "--task text", task});
  for (const char* task : {"previous", "same", "masked"})
    expect_refused({"train", "--task", task, "--tokens", "5"}, {"--tokens", "text and induction", task});
}

TEST_F(Options, RotaryPositionsTurnAsTold) {
  const Words train{"train", "--positions", "rotary", "--heads", "2", "--steps", "3", "--json"};
  const auto with = [&](const Words& more) { return json(train + more); };
  const nlohmann::json usual = with({});
  EXPECT_EQ(with({"--rope", "base=10000"})["losses"], usual["losses"]);
  EXPECT_NE(with({"--rope", "base=100"})["losses"], usual["losses"]);
  const Words yarn{"--rope", "base=500,scaling=yarn,factor=4,context=8,layout=interleaved,dim=8"};
  const Words saved = yarn + Words{"--out", "y.safetensors"};
  EXPECT_NE(with(saved)["losses"], usual["losses"]);
  output(Words{"train", "--init", "y.safetensors", "--steps", "1"} + yarn);  // the file stores the same
  expect_refused("train --init y.safetensors --rope base=500", {"--rope", "other rotary options", "y.safetensors"});
  EXPECT_EQ(output("generate --model y.safetensors --prompt abc --tokens 40").size(), 3U + 40 + 1);
  expect_refused({"train", "--rope", "base=100"}, {"--rope needs --positions rotary"});
  expect_refused("train --positions rotary --rope offset=3", {"--rope offset"});
  expect_refused("train --positions rotary --rope base=-1", {"--rope: ", "base", "-1"});
  expect_refused("train --positions rotary --rope scaling=yarn", {"--rope scaling=yarn needs context=N"});
  expect_refused("train --positions rotary --rope colour=1", {"--rope knows", "colour"});
}

TEST_F(Options, AFlagTakesNoValue) {
  expect_refused(attend("--causal top-left"), {"write --causal=top-left"});
  expect_refused("layer q_proj --causal=top-left", {"qkv layer: --causal takes no value"});
  expect_refused("train --blocks=no", {"qkv train: --blocks takes no value"});
}

TEST_F(Options, AnEmptyValueIsNoLackOfTheOption) {
  for (const char* option : {"--mask", "--window", "--key-lengths", "--offsets", "--mask-axes", "--isa", "--bits",
           "--parallel", "--layout"}) {
    expect_refused(attend({option, ""}), {"qkv attend: ", option, " needs a value", "got \"\""});
  }
  expect_refused({"generate", "--model", "m", "--prompt", "a", "--cut", ""}, {"--cut needs a value, L:H,..."});
  expect_refused({"generate", "--model", "m", "--prompt", ""}, {"--prompt needs a value, TEXT"});
  expect_refused({"map", "w.npy", "--text", ""}, {"--text needs a value, TEXT"});
  expect_refused({"train", "--sample", ""}, {"--sample needs a value, TEXT"});
  expect_refused({"mask", ""}, {"EXPR needs a value"});
  expect_refused({"train", "--map", "a.svg", "--map", ""}, {"--map needs the name of a file"});
  expect_refused({"map", "w.npy", "--out", ""}, {"--out needs the name of a file"});
}

TEST_F(Options, AFileMayBeNamedByBrackets) {
  save("w.npy", Tensor<float>({3, 3}));
  output({"map", "w.npy", "--out", "[a,b].svg", "--out", "{}.svg"});
  EXPECT_EQ(files(), (std::vector<std::string>{"[a,b].svg", "w.npy", "{}.svg"}));
  expect_refused({"map", "w.npy", "--out", "[a.svg,b.svg]"}, {"\"[a.svg,b.svg]\""});
  expect_refused({"map", "{}"}, {"FILE \"{}\""});
}

TEST_F(Options, WhatWouldHaveNoEffectIsRefused) {
  Tensor<std::int64_t> batches({2, 3, 9});
  for (Index n = 0; n < batches.count(); ++n) batches.data()[n] = n % 5;
  save("b.npy", batches);
  expect_refused("train --batches b.npy --batch 4", {"--batch must be the 3", "got 4"});
  output("train --batches b.npy --batch 3 --out m.safetensors");

  const Words greedy{"generate", "--model", "m.safetensors", "--prompt", "a", "--greedy"};
  for (const Words& more : {Words{"--temperature", "2"}, {"--top-k", "3"}, {"--seed", "3"}}) {
    expect_refused(greedy + more, {"--greedy", more[0]});
  }

  expect_refused("map m.safetensors --sequence 0", {"--sequence is for weights"});
  expect_refused("map m.safetensors --theme light --out a.png", {"--theme", "terminal"});
  output("map m.safetensors --theme light");

  save("w.npy", Tensor<float>({3, 3}));
  expect_refused("map w.npy --columns 2", {"--columns is for .png"});
  expect_refused("map w.npy --columns 2 --out a.html", {"--columns is for .png"});
  expect_refused("map --qk qk.safetensors --pixel-ratio 2 --out a.html", {"--qk goes with"});

  expect_refused(attend({"--mask-axes", "qk"}), {"--mask-axes needs --keep or --drop"});
  expect_refused(attend({"--seed", "5"}), {"--seed", "--dropout"});
  StateDict in;
  for (const char* name : {"q", "k", "v"}) in.add(name, load("x.npy"));
  io::save_safetensors(path("in.safetensors"), in);
  expect_refused("attend --in in.safetensors --out o.npy --dout x.npy", {"--dout needs a file for gradients"});
  expect_refused(
      "attend --in in.safetensors --out o.safetensors --q x.npy", {"--q and q in --in \"in.safetensors\": give one"});
  in.add("dout", load("x.npy"));
  io::save_safetensors(path("dout.safetensors"), in);
  expect_refused(
      "attend --in dout.safetensors --out o.npy", {"dout in --in \"dout.safetensors\" needs a file for gradients"});
  in.add("mask", load("x.npy"));
  io::save_safetensors(path("in.safetensors"), in);
  expect_refused(
      "attend --in in.safetensors --out o.npy", {"in.safetensors", "q, k, v, dout, bias, keep, drop", "mask"});

  save("bte.npy", Tensor<float>({1, 3, 4}));
  for (const char* option : {"--dropout", "--residual-dropout"}) {
    expect_refused({"layer", "average", "--x", "bte.npy", "--out", "y.npy", option, "0.5"}, {option, "average"});
    output({"layer", "average", "--x", "bte.npy", "--out", "y.npy", option, "0"});
  }
  expect_refused("layer average --x bte.npy --out y.npy --empty-row nan", {"--empty-row", "average"});
  expect_refused("layer average --x bte.npy --out y.npy --seed 3", {"--seed", "--dropout"});
  const auto rope_refused = [&](const std::string& rope, const Words& fragments) {
    expect_refused({"train", "--positions", "rotary", "--rope", rope}, fragments);
  };
  rope_refused("factor=4", {"--rope factor", "linear, ntk, yarn or llama3"});
  rope_refused("scaling=linear,factor=4,context=8", {"--rope context", "yarn or llama3", "linear"});
  rope_refused("base=5,base=6", {"--rope takes each key once", "base"});
  StateDict grouped;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"})
    grouped.add(name, any_tensor(Tensor<float>({4, 4})));
  io::save_safetensors(path("g.safetensors"), grouped);
  const Words layer = "layer grouped-query --state g.safetensors --heads 2 --x bte.npy --out y.npy";
  expect_refused(layer + "--norm-eps 0.1", {"--norm-eps needs norms", "q_norm.weight", "g.safetensors"});

  expect_refused("lesson --out l.html --answer 1", {"--out", "--answer"});
  expect_refused("lesson 4 --json --draw", {"--json", "--draw"});

  expect_refused("ablate same-q --steps 5", {"--steps is for no-mask"});
  expect_refused("bench fwd-f32-d64-s128 --suite lm", {"--suite"});
  expect_refused({"bench", "--exact"}, {"--exact"});
  expect_refused("bench --list --json", {"--list", "--json"});
  EXPECT_LT(output("bench --list --suite lm").size(), output({"bench", "--list"}).size());
}

}  // namespace
}  // namespace qkv::test
