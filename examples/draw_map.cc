// Attention weights as pictures: terminal, SVG, an offline page, PNG (with Pango). Usage: example_draw_map [FOLDER]
#include <filesystem>

#include "example.h"
#include "qkv/nn/self_attention.h"
#include "qkv/view/fonts.h"
#include "qkv/view/html.h"
#include "qkv/view/png.h"
#include "qkv/view/svg.h"
#include "qkv/view/terminal.h"

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  const std::string text = "attention";
  const auto length = static_cast<qkv::Index>(text.size());
  const qkv::nn::MultiHeadAttention layer({.embed_dim = 64, .num_heads = 2, .causal = true, .seed = 1});
  qkv::Tensor<float> weights;  // [B, H, T, T]
  qkv::Tensor<float> x = random_tensor({1, length, 64}, 2);
  for (float& value : x.span()) value *= 4.0F;  // an untrained layer attends almost evenly: larger inputs sharpen it
  layer.forward(x, {.weights = &weights});

  const auto map = qkv::view::make_map(qkv::View<const float, 4>(weights), qkv::view::characters(text), "an untrained layer");
  std::printf("%s\n", qkv::view::render_terminal(map, {.colour = false}).c_str());
  std::vector<std::string> names{"map.svg", "map.html"};
  qkv::view::save_svg(folder / "map.svg", map);
  qkv::view::save_html(folder / "map.html", map);
  if (qkv::view::draws_text()) qkv::view::save_png(folder / names.emplace_back("map.png"), map);
  bool written = true;
  for (const std::string& name : names) {
    written = written && std::filesystem::file_size(folder / name) > 0;
    std::printf("%s %lld bytes\n", (folder / name).c_str(), static_cast<long long>(std::filesystem::file_size(folder / name)));
  }
  const qkv::view::HeadStatistics head = qkv::view::head_statistics(map, 0, 0);
  std::printf("head 0: self %.2f previous %.2f first %.2f entropy %.2f nats\n", head.self, head.previous, head.first,
              head.entropy);
  return verdict(written && head.rows == length - 1, "pictures of one map");
}
