#include "view/page.h"

#include <span>
#include <string>

#include "core/embedded_file.h"

namespace qkv::inline v0 {
std::span<const EmbeddedFile> embedded_page();
}

namespace qkv::inline v0::view {
namespace {

std::string_view file(std::string_view name) {
  for (const EmbeddedFile& each : embedded_page()) {
    if (each.name == name) return each.text;
  }
  return {};
}

/// page.html with style and script in their places.
std::string whole_page() {
  std::string html(file("page.html"));
  const auto put = [&](std::string_view mark, std::string_view text) { html.replace(html.find(mark), mark.size(), text); };
  put("{{style}}", file("page.css"));
  put("{{script}}", file("page.js"));
  return html;
}

/// Cut at the marks of the title and of the data.
Page cut(std::string_view html) {
  constexpr std::string_view kTitle = "{{title}}", kData = "{{data}}";
  const std::size_t title = html.find(kTitle), data = html.find(kData), after = title + kTitle.size();
  return {html.substr(0, title), html.substr(after, data - after), html.substr(data + kData.size())};
}

}  // namespace

const Page& page() {
  static const std::string html = whole_page();
  static const Page parts = cut(html);
  return parts;
}

}  // namespace qkv::inline v0::view
