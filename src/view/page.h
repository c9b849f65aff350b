// The parts of the HTML page around its data. Not: the data (html.cc).
#pragma once

#include <string_view>

namespace qkv {
inline namespace v0 {
namespace view {

/// Everything up to the text of <title>.
extern const std::string_view kPageHead;
/// From </title> to the line of script that names the data: `const M = ` comes last, a JavaScript object literal must follow.
extern const std::string_view kPageBody;
/// The script that draws M, and the end of the page.
extern const std::string_view kPageScript;

}  // namespace view
}  // namespace v0
}  // namespace qkv
