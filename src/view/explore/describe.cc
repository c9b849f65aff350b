#include "view/explore/describe.h"

namespace qkv::inline v0::view {

void describe(StateDict& file, Json json, const std::string& title, OneView view,
    const std::vector<std::string>& query_tokens, const std::vector<std::string>& key_tokens) {
  const auto text = [](const char* name, const std::vector<std::string>& tokens, Index length) {
    return Json{{"name", name}, {"tokens", tokens.empty() ? Json() : Json(tokens)}, {"length", length}};
  };
  const bool one_text = is_one_text(view.q_len, view.kv_len, query_tokens, key_tokens);
  json["title"] = title;
  json["texts"] = Json::array({text(one_text ? "text" : "keys", key_tokens, view.kv_len)});
  if (!one_text) json["texts"].push_back(text("queries", query_tokens, view.q_len));
  for (Json& layer : view.layers) {
    layer["q_len"] = view.q_len;
    layer["kv_len"] = view.kv_len;
  }
  json["views"] = Json::array({{{"name", view.name}, {"kind", one_text ? "self" : "cross"},
      {"queries", one_text ? 0 : 1}, {"keys", 0}, {"layers", std::move(view.layers)}}});
  file.metadata["format"] = "qkv.explorer.1";
  file.metadata["title"] = title;
  // Of tokens, bytes that are not UTF-8 become U+FFFD; what is not finite becomes null.
  file.metadata["explorer"] = json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace qkv::inline v0::view
