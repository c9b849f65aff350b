// qkv forms: the table against formulas and against itself.
#include <cmath>
#include <map>
#include <set>

#include "cli/tool.h"

namespace qkv::test {
namespace {

using Document = nlohmann::json;

class Forms : public ToolTest {
 protected:
  static std::map<std::string, Document> by_name(const Document& document) {
    std::map<std::string, Document> forms;
    for (const Document& form : document.at("forms")) forms[form.at("name")] = form;
    return forms;
  }
};

TEST_F(Forms, EveryFormIsWithinItsBoundAndEveryPairIsEqual) {
  for (const Words& sizes :
      {Words{}, {"--batch", "3", "--length", "17", "--embed", "30", "--heads", "5", "--seed", "7"}}) {
    const Words words = Words{"forms", "--json"} + sizes;
    const Document document = json(words);
    EXPECT_TRUE(document.at("holds").get<bool>());
    for (const Document& form : document.at("forms")) {
      SCOPED_TRACE(form.dump());
      EXPECT_GT(form.at("error").get<double>(), 0);  // no form is its own reference
      EXPECT_LT(form.at("error").get<double>(), form.at("type") == "f32" ? 1e-5 : 1e-13);
      EXPECT_LE(form.at("error_over_bound").get<double>(), 1);
      EXPECT_GT(form.at("ms").get<double>(), 0);
    }
    for (const Document& pair : document.at("equal")) {
      SCOPED_TRACE(pair.dump());
      EXPECT_TRUE(pair.at("holds").get<bool>());
      const std::string a = pair.at("a").get<std::string>();
      const bool naive = a.starts_with("naive") || a.starts_with("linear");
      EXPECT_EQ(pair.at("same_bits").get<bool>(), !naive);
      if (naive) {
        EXPECT_GT(pair.at("difference").get<double>(), 0);  // two computations, not one
      }
    }
    EXPECT_EQ(document.at("equal").size(), 12U);
  }
}

TEST_F(Forms, CostsFollowFromTheSizes) {
  const double batch = 2, length = 64, embed = 24, heads = 3;
  const auto forms = by_name(json("forms --json --batch 2 --length 64 --embed 24 --heads 3"));
  const double square = embed * embed;
  const std::map<std::string, double> parameters = {{"v1", 3 * square + 3 * embed}, {"v2", 3 * square + 3 * embed},
      {"v3", 4 * square + 4 * embed}, {"v4", 4 * square + 4 * embed}, {"single-head", 4 * square},
      {"mha, 3 heads", 4 * square + 4 * embed}, {"self-attention", 3 * square + 3 * embed}};
  for (const auto& [name, count] : parameters) EXPECT_EQ(forms.at(name).at("parameters").get<double>(), count) << name;
  const double every_pair = length * length, causal_pairs = length * (length + 1) / 2;
  for (const auto& [name, form] : forms) {
    SCOPED_TRACE(name);
    const bool causal = name.find("causal") != std::string::npos || name == "single-head";
    if (form.at("family") != "linear" && form.at("family") != "sparse") {
      EXPECT_EQ(form.at("attention_flops").get<double>(), 4 * batch * embed * (causal ? causal_pairs : every_pair));
    }
    const double matrices = form.at("type") == "f64" || form.at("parameters") == 0     ? 0
                            : name == "v1" || name == "v2" || name == "self-attention" ? 3
                                                                                       : 4;
    EXPECT_EQ(form.at("projection_flops").get<double>(), 2 * batch * length * square * matrices);
    EXPECT_EQ(form.at("flops").get<double>(),
        form.at("projection_flops").get<double>() + form.at("attention_flops").get<double>());
    if (name.starts_with("naive")) {
      EXPECT_EQ(form.at("score_bytes").get<double>(), batch * heads * every_pair * (form.at("type") == "f64" ? 8 : 4));
    }
  }
}

TEST_F(Forms, LinearCostsGrowAsTheLengthAndSparseOnesAsTheLivePairs) {
  const double batch = 2, length = 130, embed = 24, heads = 3, width = embed / heads, chunk = 32;
  const auto forms = by_name(json("forms --json --batch 2 --length 130 --embed 24 --heads 3"));
  const auto flops = [&](const char* name) { return forms.at(name).at("attention_flops").get<double>(); };
  const double state = batch * length * heads * 4 * width * width;  // into the state and out of it
  const auto triangle = [](double n) { return n * (n + 1) / 2; };
  const double chunks = std::floor(length / chunk),
               pairs = chunks * triangle(chunk) + triangle(length - chunks * chunk);
  EXPECT_EQ(flops("linear"), state);
  EXPECT_EQ(flops("linear recurrent"), state);
  EXPECT_EQ(flops("linear decay"), state + 4 * batch * embed * pairs);
  EXPECT_EQ(flops("linear chunked"), flops("linear decay"));
  EXPECT_EQ(flops("linear square"), 4 * batch * embed * triangle(length));
  EXPECT_EQ(flops("linear features"), 2 * 4 * state);  // 4 D features, and making them
  const double reach = 8;
  EXPECT_EQ(flops("sparse window"), 4 * batch * embed * (length * (2 * reach + 1) - reach * (reach + 1)));
}

TEST_F(Forms, TheLongestLengthFillsTheMemory) {
  const double batch = 2, embed = 64, heads = 4, memory = 64.0 * 1024 * 1024;
  const Document document = json("forms --json --length 64 --memory 64");
  EXPECT_EQ(document.at("memory_bytes").get<double>(), memory);
  int told = 0;
  for (const auto& [name, form] : by_name(document)) {
    if (form.at("longest_length").is_null() || name == "linear square") continue;
    SCOPED_TRACE(name);
    const double n = form.at("longest_length").get<double>(), bytes = form.at("type") == "f64" ? 8 : 4;
    const auto needed = [&](double tokens) {
      const double own =
          name.starts_with("naive") ? batch * heads * tokens * tokens * bytes : form.at("score_bytes").get<double>();
      return 4 * batch * embed * tokens * bytes + own;
    };
    EXPECT_LE(needed(n), memory);
    EXPECT_GT(needed(n + 1), memory);
    ++told;
  }
  EXPECT_EQ(told, 8 + 6 + 2);
}

TEST_F(Forms, OnlyTheSameFormulaIsNearSoftmax) {
  const auto forms = by_name(json("forms --json --length 64"));
  const auto away = [&](const char* name) { return forms.at(name).at("from_softmax").get<double>(); };
  for (const char* name : {"naive f32", "tiled f32"}) EXPECT_LT(away(name), 1e-5) << name;
  for (const char* name : {"linear", "linear features", "sparse window", "sparse blocks"})
    EXPECT_GT(away(name), 1e-4) << name;
  EXPECT_LT(away("linear features"), 1);
  EXPECT_TRUE(forms.at("linear chunked").at("from_softmax").is_null());
}

TEST_F(Forms, TilesNeedNoMoreMemoryForLongerSequences) {
  const auto bytes = [&](const char* length, const char* name) {
    return by_name(json({"forms", "--json", "--length", length, "--embed", "8", "--heads", "1", "--batch", "1"}))
        .at(name)
        .at("score_bytes")
        .get<double>();
  };
  EXPECT_EQ(bytes("256", "tiled f32"), bytes("512", "tiled f32"));
  EXPECT_EQ(4 * bytes("256", "naive f32"), bytes("512", "naive f32"));
}

TEST_F(Forms, FamiliesAreTheTablesOwn) {
  std::set<std::string> families;
  const Document document = json("forms --json --length 8");
  for (const Document& form : document.at("forms")) families.insert(form.at("family"));
  EXPECT_EQ(families, (std::set<std::string>{"causal", "flash", "linear", "multi-head", "sparse", "standard"}));
}

TEST_F(Forms, TheTableFitsAndSaysThatItWasChecked) {
  std::istringstream text(output({"forms", "--length", "32"}));
  bool checked = false;
  for (std::string line; std::getline(text, line);) {
    EXPECT_LE(line.size(), 84U) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    checked |= line.starts_with("Checked: all pairs are equal");
  }
  EXPECT_TRUE(checked);
}

TEST_F(Forms, ImpossibleSizesAreRefused) {
  expect_refused({"forms", "--heads", "5"}, {"--heads must divide --embed", "5 and 64"});
  expect_refused({"forms", "--batch", "0"}, {"at least 1"});
  expect_refused({"forms", "--length", "-3"}, {"at least 1"});
  expect_refused({"forms", "--length", "1000000"}, {"at most", "qkv bench"});
  expect_refused("forms --length 9223372036854775807 --batch 9223372036854775807", {"at most"});
  expect_refused({"forms", "extra"}, {"extra"});
}

}  // namespace
}  // namespace qkv::test
