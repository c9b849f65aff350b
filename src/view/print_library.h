// The library libqkv_print of a wheel: print/ and all that it draws, linked with Pango, and loaded where Pango is
// (loaded_pango.cc).
#pragma once

#include "qkv/view/pictures.h"

namespace qkv::inline v0::view {

struct PrintLibrary {
  decltype(&missing_characters) missing;
  decltype(&render_png) png;
  decltype(&render_pdf) pdf;
};

}  // namespace qkv::inline v0::view

/// What libqkv_print exports.
extern "C" __attribute__((visibility("default"))) const qkv::view::PrintLibrary* qkv_print_library();
