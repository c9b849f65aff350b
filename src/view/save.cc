// Pictures of bytes into files. Not: drawing (print/).
#include "core/file.h"
#include "qkv/view/pdf.h"
#include "qkv/view/png.h"

namespace qkv::inline v0::view {

void save_png(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options,
              const PixelOptions& pixels) {
  write_file_atomically(path, render_png(map, options, pixels));
}

void save_pdf(const std::filesystem::path& path, const AttentionMap& map, const MapOptions& options) {
  write_file_atomically(path, render_pdf(map, options));
}

}  // namespace qkv::inline v0::view
