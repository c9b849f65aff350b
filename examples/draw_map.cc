// Attention weights as pictures: terminal, SVG, an offline page, PNG (with Pango). Usage: example_draw_map [FOLDER]
#include <filesystem>

#include "example.h"
#include "qkv/io/file.h"
#include "qkv/nn/self_attention.h"
#include "qkv/view/pictures.h"

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  const std::string text = "attention";
  const auto length = static_cast<qkv::Index>(text.size());
  const qkv::nn::MultiHeadAttention layer({.embed_dim = 64, .num_heads = 2, .causal = true, .seed = 1});
  qkv::Tensor<float> weights;  // [B, H, T, T]
  qkv::Tensor<float> x = random_tensor({1, length, 64}, 2);
  for (float& value : x.span()) value *= 4.0F;  // an untrained layer attends almost evenly: larger inputs sharpen it
  layer.forward(x, {.weights = &weights});

  const auto map =
      qkv::view::make_map(qkv::View<const float, 4>(weights), qkv::view::characters(text), "an untrained layer");
  std::printf("%s\n", qkv::view::render_terminal(map, {.colour = false}).c_str());
  std::vector<std::string> names{"map.svg", "map.html"};
  qkv::io::write_file_atomically(folder / "map.svg", qkv::view::render_svg(map));
  qkv::io::write_file_atomically(folder / "map.html", qkv::view::render_html(map));
  if (qkv::view::draws_text()) {
    qkv::io::write_file_atomically(folder / names.emplace_back("map.png"), qkv::view::render_png(map));
  }
  bool written = true;
  for (const std::string& name : names) {
    written = written && std::filesystem::file_size(folder / name) > 0;
    std::printf(
        "%s %lld bytes\n", (folder / name).c_str(), static_cast<long long>(std::filesystem::file_size(folder / name)));
  }
  const qkv::view::HeadStatistics head = qkv::view::head_statistics(map, 0, 0);
  std::printf("head 0: self %.2f previous %.2f first %.2f entropy %.2f nats\n", head.self, head.previous, head.first,
      head.entropy);
  return verdict(written && head.rows == length - 1, "pictures of one map");
}
