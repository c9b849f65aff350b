// What a wheel loads where Pango is: print_library.h.
#include "view/print_library.h"

const qkv::view::PrintLibrary* qkv_print_library() {
  static constexpr qkv::view::PrintLibrary library = {
      &qkv::view::missing_characters, &qkv::view::render_png, &qkv::view::render_pdf};
  return &library;
}
