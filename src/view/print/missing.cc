// Which characters of a picture no font has. Not: what to install.
#include <algorithm>

#include "qkv/view/fonts.h"
#include "view/print/typesetter.h"
#include "view/text.h"

namespace qkv::inline v0::view {
namespace {

/// Draws nothing: it reads what would be written.
class MissingCanvas final : public Canvas {
 public:
  explicit MissingCanvas(const Typesetter& typesetter) : typesetter_(typesetter) {}

  void fill(const Box&, Paint) override {}
  void text(const Label& label) override { typesetter_.append_missing(label.text, missing_); }
  void cells(const Panel&) override {}

  const std::vector<char32_t>& missing() const { return missing_; }

 private:
  const Typesetter& typesetter_;
  std::vector<char32_t> missing_;
};

std::string script_name(char32_t code) {
  struct Unref {
    void operator()(void* enumeration) const { g_type_class_unref(enumeration); }
  };
  const std::unique_ptr<void, Unref> scripts(g_type_class_ref(G_TYPE_UNICODE_SCRIPT));
  const GEnumValue* const value = g_enum_get_value(static_cast<GEnumClass*>(scripts.get()), g_unichar_get_script(code));
  return value == nullptr ? "unknown" : value->value_nick;
}

}  // namespace

bool draws_text() { return true; }

std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions& options) {
  check_map(map);
  const Typesetter typesetter;
  const Layout layout = lay_out(map, options, typesetter.text_width());
  MissingCanvas canvas(typesetter);
  draw(canvas, map, options, layout);
  std::vector<MissingCharacter> out;
  for (const char32_t code : canvas.missing()) {
    if (std::ranges::none_of(out, [code](const MissingCharacter& known) { return known.code == code; })) {
      out.push_back({code, {}, script_name(code)});
      append_utf8(out.back().text, code);
    }
  }
  return out;
}

}  // namespace qkv::inline v0::view
