// The errors of a build without Pango, instead of print/.
#include <string>

#include "qkv/error.h"
#include "qkv/view/pictures.h"

namespace qkv::inline v0::view {

namespace {

[[noreturn]] void refuse(const std::string& function) {
  throw UnsupportedError(
      "[" + function + "] " + "PNG and PDF are not drawn without Pango: " + std::string(kWithoutText));
}

}  // namespace

bool draws_text() { return false; }

std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions&) {
  check_map(map);
  return {};
}

std::vector<std::byte> render_png(const AttentionMap&, const MapOptions&, const PixelOptions&) { refuse("render_png"); }

std::vector<std::byte> render_pdf(const AttentionMap&, const MapOptions&) { refuse("render_pdf"); }

}  // namespace qkv::inline v0::view
