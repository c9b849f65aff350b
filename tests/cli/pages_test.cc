// The commands in docs/cli and README.md, verbatim: each runs, in a folder with the files that they name.
#include <fstream>

#include "cli/tool.h"
#include "qkv/io/safetensors.h"
#include "support/random.h"

namespace qkv::test {
namespace {

/// Splits words as a shell does; double quotes only.
Words cut(const std::string& line) {
  Words words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line + " ") {
    if (c == '"') {
      quoted = !quoted;
      any = true;
    } else if (c == ' ' && !quoted) {
      if (any || !word.empty()) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word += c;
    }
  }
  return words;
}

/// The lines "    qkv COMMAND ..." of a page, without "qkv".
std::vector<Words> commands_of(const std::filesystem::path& page) {
  constexpr std::string_view kStart = "    qkv ";
  std::ifstream file(page);
  EXPECT_TRUE(file.is_open()) << page;
  std::vector<Words> commands;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kStart)) continue;
    Words words = cut(line.substr(kStart.size(), line.find("  #") - kStart.size()));
    const bool message = words.front().ends_with(':');  // the tool's output, not input
    if (!message) commands.push_back(std::move(words));
  }
  return commands;
}

class Pages : public ToolTest {
 protected:
  void draw(const std::string& name, std::vector<Index> sizes) { save(name, numbers(std::move(sizes))); }

  Tensor<float> numbers(std::vector<Index> sizes) {
    Tensor<float> tensor(std::move(sizes));
    for (float& x : tensor.span()) x = static_cast<float>(random_.symmetric());
    return tensor;
  }

  void draw_file(const std::string& name, const std::vector<std::pair<std::string, std::vector<Index>>>& tensors) {
    StateDict state;
    for (const auto& [tensor, sizes] : tensors) state.add(tensor, any_tensor(numbers(sizes)));
    io::save_safetensors(path(name), state);
  }

  /// The inputs of the pages' commands: four heads of q, k, v for most, a layer of width 64 for `layer`.
  void prepare(const std::string& page) {
    std::filesystem::create_directories(path("docs/images"));
    if (page == "layer") {
      const std::vector<Index> square{64, 64}, row{64};
      for (const char* name : {"x.npy", "g.npy"}) draw(name, {2, 5, 64});
      draw_file("mha.safetensors", {{"in_proj_weight", {192, 64}}, {"in_proj_bias", {192}}, {"out_proj.weight", square},
                                       {"out_proj.bias", row}});
      std::vector<std::pair<std::string, std::vector<Index>>> v4;
      for (const std::string name : {"query_proj", "key_proj", "value_proj", "output_proj"}) {
        v4.emplace_back(name + ".weight", square);
        v4.emplace_back(name + ".bias", row);
      }
      draw_file("v4.safetensors", v4);
      draw_file("layer0.safetensors", {{"q_proj.weight", square}, {"k_proj.weight", {16, 64}},
                                          {"v_proj.weight", {16, 64}}, {"o_proj.weight", square}});
      return;
    }
    const std::vector<Index> sizes{2, 4, 6, 8};
    for (const char* name : {"q.npy", "k.npy", "v.npy", "g.npy"}) draw(name, sizes);
    draw_file("in.safetensors", {{"q", sizes}, {"k", sizes}, {"v", sizes}});
    if (page == "map" || page == "README") {
      draw_file("qk.safetensors", {{"q", {4, 3, 8}}, {"k", {2, 3, 8}}});
      std::ofstream(path("tokens.json")) << R"(["The", " cat", " sat"])";
    }
    if (page == "map") output("attend --in in.safetensors --out out.safetensors --weights w.npy");
    if (page == "map" || page == "generate") output("train --steps 5 --out model.safetensors");
  }

  Random random_{7};
};

TEST_F(Pages, TheirCommandsRun) {
  std::vector<std::filesystem::path> pages{repository() / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(repository() / "docs" / "cli"))
    pages.push_back(entry.path());
  std::ranges::sort(pages);
  int ran = 0;
  for (const std::filesystem::path& page : pages) {
    prepare(page.stem().string());
    for (const Words& words : commands_of(page)) {
      if (words.front() == "bench" && words.back() != "--list") continue;
      if (words.size() > 1 && words[1] == "--watch") continue;  // needs NumPy, and waits for a save
      SCOPED_TRACE(page.filename().string() + ": " + testing::PrintToString(words));
      output(words);
      ++ran;
    }
  }
  EXPECT_GE(ran, 25) << "the pages show fewer commands than they did";
}

}  // namespace
}  // namespace qkv::test
