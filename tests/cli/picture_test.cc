// Pictures into files: endings, pixels, and characters that no font has.
#include "qkv/io/safetensors.h"
#include "qkv/view/explorer.h"
#include "tool.h"

namespace qkv::test {
namespace {

class Pictures : public ToolTest {
 protected:
  Pictures() {
    Tensor<float> weights({2, 3, 3});
    for (Index n = 0; n < weights.count(); ++n) weights.data()[n] = n % 4 == 0 ? 1.0F : 0.0F;
    save("w.npy", weights);
  }
  Words map(const Words& more) const { return Words{"map", "w.npy"} + more; }
  /// The number at a byte of the .png, most significant byte first.
  unsigned long number(const std::string& name, std::size_t at) const {
    const std::string bytes = contents(path(name));
    unsigned long value = 0;
    for (std::size_t n = at; n < at + 4; ++n) value = value << 8 | static_cast<unsigned char>(bytes.at(n));
    return value;
  }
};

constexpr std::size_t kWidth = 16;  // of a .png: signature, length and name of its first chunk

TEST_F(Pictures, EveryEnding) {
  output(map({"--text", "abc", "--out", "a.png", "--out", "a.svg", "--out", "a.pdf", "--out", "a.html"}));
  for (const auto& [name, start] :
      {std::pair{"a.png", "\x89PNG\r\n"}, {"a.svg", "<svg"}, {"a.pdf", "%PDF-1."}, {"a.html", "<!DOCTYPE html>"}}) {
    EXPECT_TRUE(contents(path(name)).starts_with(start)) << name;
  }
  output("mask causal --out mask.pdf");
  EXPECT_TRUE(contents(path("mask.pdf")).starts_with("%PDF-1."));
}

TEST_F(Pictures, ARatioOfPixels) {
  output(map({"--out", "one.png"}));
  output(map({"--out", "two.png", "--pixel-ratio", "2", "--out", "two.svg"}));
  EXPECT_EQ(number("two.png", kWidth), 2 * number("one.png", kWidth));
  expect_refused(map({"--pixel-ratio", "2", "--out", "a.svg"}), {"--pixel-ratio", ".png"});
  expect_refused(map({"--pixel-ratio", "2"}), {"--pixel-ratio", ".png"});
  for (const char* wrong : {"0.5", "9", "nan", "x"}) {
    expect_refused(map({"--pixel-ratio", wrong, "--out", "a.png"}), {"--pixel-ratio", wrong});
  }
}

/// U+0378 is no character, so no font has it: one line says so, however many files show it.
TEST_F(Pictures, ACharacterThatNoFontHas) {
  const Outcome drawn = run(map({"--text", "a\u0378b", "--out", "a.png", "--out", "a.pdf", "--out", "b.png"}));
  EXPECT_EQ(drawn.code, 0);
  EXPECT_EQ(std::ranges::count(drawn.err, '\n'), 1) << drawn.err;
  for (const char* fragment : {"U+0378", "fonts-noto-core", "a.png"}) {
    EXPECT_NE(drawn.err.find(fragment), std::string::npos) << drawn.err;
  }
  output(map({"--text", "a\u0378b", "--out", "a.svg"}));
}

TEST_F(Pictures, WhatDoesNotFitIsNamed) {
  save("row.npy", Tensor<float>({3}));
  expect_refused("map row.npy --out a.png", {"row.npy", "[Tq, Tk]", "[3]"});
  expect_refused(map({"--sequence", "1", "--out", "a.png"}), {"--sequence", "w.npy", "got 1"});
  expect_refused(map({"--text", "abcd", "--out", "a.png"}), {"--text", "(3)", "got 4"});
  expect_refused(map({"--tokens", "t.json", "--out", "a.html"}), {"--tokens goes with --qk"});
  StateDict qk;
  for (const char* name : {"q", "k"}) qk.add(name, any_tensor(Tensor<float>({1, 2, 4})));
  io::save_safetensors(path("qk.safetensors"), qk);
  const Words page{"map", "--qk", "qk.safetensors", "--out", "page.html"};
  expect_refused(map({"--qk", "qk.safetensors", "--out", "page.html"}), {"give one file"});
  expect_refused(page + Words{"--heads", "0"}, {"--qk goes with --tokens, --title and --out"});
  expect_refused(page + Words{"--out", "a.html"}, {"--qk needs one --out"});
  for (const auto& [tokens, said] :
      {std::pair{"{", "is not JSON"}, {R"({"rows": []})", "may hold queries and keys: got \"rows\""},
          {"[1, 2]", "must be a JSON list of strings"}}) {
    write("t.json", tokens);
    expect_refused(page + Words{"--tokens", "t.json"}, {"--tokens", "t.json", said});
  }
  StateDict full = view::explorer_of_heads(qk, {}, {});
  io::save_safetensors(path("qk.safetensors"), full);
  write("t.json", R"(["a", "b"])");
  expect_refused(page + Words{"--tokens", "t.json"}, {"--tokens are for the small form"});
  expect_refused(page + Words{"--title", "mine"}, {"--title is for the small form"});
  output(page);
}

}  // namespace
}  // namespace qkv::test
