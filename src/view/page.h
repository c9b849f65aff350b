// The parts of the HTML page around its data: page/page.html, with the style and the script beside it, embedded when the
// library is built (cmake/EmbedFiles.cmake). The page works from a file, without network: its policy forbids every request. Not:
// the data, escapes (html.cc).
#pragma once

#include <string_view>

namespace qkv::inline v0::view {

struct Page {
  std::string_view head;    ///< everything up to the text of <title>
  std::string_view body;    ///< from </title> up to `const M = ` in the script: the data follow as a JavaScript object literal
  std::string_view script;  ///< draws M, and ends the page
};
const Page& page();

}  // namespace qkv::inline v0::view
