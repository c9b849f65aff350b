// PNG and PDF of a wheel: by libqkv_print, which lies beside this library and can be loaded where Pango is installed.
#include <dlfcn.h>

#include <string>

#include "qkv/error.h"
#include "view/print_library.h"

namespace qkv::inline v0::view {

namespace {

/// Null without Pango. Asked for once; never unloaded.
const PrintLibrary* print_library() {
  static const PrintLibrary* const library = []() -> const PrintLibrary* {
    ::Dl_info self;
    if (::dladdr(reinterpret_cast<const void*>(&draws_text), &self) == 0) return nullptr;
    const std::string path = self.dli_fname;
    void* const handle = ::dlopen((path.substr(0, path.rfind('/') + 1) + "libqkv_print.so").c_str(), RTLD_NOW);
    if (handle == nullptr) return nullptr;
    const auto function = reinterpret_cast<decltype(&qkv_print_library)>(::dlsym(handle, "qkv_print_library"));
    return function == nullptr ? nullptr : function();
  }();
  return library;
}

const PrintLibrary& need(const char* function) {
  if (const PrintLibrary* library = print_library()) return *library;
  throw UnsupportedError(
      "[" + std::string(function) + "] " + "PNG and PDF are not drawn without Pango: " + std::string(kWithoutText));
}

}  // namespace

bool draws_text() { return print_library() != nullptr; }

std::vector<MissingCharacter> missing_characters(const AttentionMap& map, const MapOptions& options) {
  if (const PrintLibrary* library = print_library()) return library->missing(map, options);
  check_map(map);
  return {};
}

std::vector<std::byte> render_png(const AttentionMap& map, const MapOptions& options, const PixelOptions& pixels) {
  return need("render_png").png(map, options, pixels);
}

std::vector<std::byte> render_pdf(const AttentionMap& map, const MapOptions& options) {
  return need("render_pdf").pdf(map, options);
}

}  // namespace qkv::inline v0::view
