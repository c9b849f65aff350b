// The parts of the HTML page around its data: page/page.html, with the style and the script beside it, embedded when the
// library is built (cmake/EmbedPage.cmake). The page works from a file, without network: its policy forbids every request. Not:
// the data, escapes (html.cc).
#pragma once

#include <string_view>

namespace qkv::inline v0::view {

/// Everything up to the text of <title>.
extern const std::string_view kPageHead;
/// From </title> up to `const M = ` in the script, after which the data must follow as a JavaScript object literal.
extern const std::string_view kPageBody;
/// The script that draws M, and the end of the page.
extern const std::string_view kPageScript;

}  // namespace qkv::inline v0::view
