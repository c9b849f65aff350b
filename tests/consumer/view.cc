// Uses the installed pictures: a map of two tokens as text and as PNG, or as SVG from a build without Pango.
#include <qkv/view/pictures.h>

#include <cstdio>

int main() {
  qkv::Tensor<float> weights({1, 2, 2});  // [H, Tq, Tk]
  for (qkv::Index i = 0; i < weights.count(); ++i) weights.data()[i] = 0.5F;
  const qkv::view::AttentionMap map = qkv::view::make_map(qkv::View<const float, 3>(weights), {"a", "b"});
  const std::size_t bytes =
      qkv::view::draws_text() ? qkv::view::render_png(map).size() : qkv::view::render_svg(map).size();
  const bool named = qkv::view::render_terminal(map, {.colour = false}).find("50") != std::string::npos;
  std::printf("picture of %zu bytes, text holds 50 percent: %s\n", bytes, named ? "yes" : "no");
  return bytes > 0 && named ? 0 : 1;
}
