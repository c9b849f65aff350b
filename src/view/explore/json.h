// Strings, numbers, lists and texts as JSON. Not: reading JSON, which the page does.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "qkv/types.h"
#include "view/text.h"

namespace qkv::inline v0::view {

/// A JSON string; bytes that are not UTF-8 become U+FFFD.
inline std::string quote_json(std::string_view text) {
  std::string out = "\"";
  for (const Character& c : decode_utf8(text)) {
    if (!c.valid) {
      append_utf8(out, 0xFFFD);
    } else if (c.code == '"' || c.code == '\\') {
      out += '\\';
      out += static_cast<char>(c.code);
    } else if (c.code < 0x20) {
      out += "\\u" + hexadecimal(c.code, 4);
    } else {
      append_utf8(out, c.code);
    }
  }
  return out + '"';
}

/// null where it is not finite.
inline std::string json_number(double value) { return std::isfinite(value) ? number_text(value) : "null"; }

/// "[a,b,c]" from each(item) of every item.
template <class List, class Each> std::string json_list(const List& list, const Each& each) {
  std::string out = "[";
  for (const auto& item : list) out += (out.size() > 1 ? "," : "") + each(item);
  return out + "]";
}

/// A text of the explorer's file.
inline std::string text_json(const std::string& name, const std::vector<std::string>& tokens, Index length) {
  return "{\"name\":" + quote_json(name) + ",\"tokens\":" + (tokens.empty() ? "null" : json_list(tokens, quote_json)) +
         ",\"length\":" + std::to_string(length) + "}";
}

}  // namespace qkv::inline v0::view
