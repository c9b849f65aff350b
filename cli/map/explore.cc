#include "map/explore.h"

#include <vector>

#include "qkv/view/explorer.h"
#include "support/command.h"
#include "support/files.h"
#include "support/json.h"

namespace qkv::cli {
namespace {

struct Tokens {
  std::vector<std::string> queries, keys;
};

std::vector<std::string> strings_of(const Json& list, const std::string& path) {
  const auto refuse = [&] {
    return UsageError("--tokens " + escaped(path) + R"( must be a JSON list of strings, or {"queries": [...], "keys": [...]})");
  };
  if (!list.is_array()) throw refuse();
  std::vector<std::string> out;
  for (const Json& one : list) {
    if (!one.is_string()) throw refuse();
    out.push_back(one.get<std::string>());
  }
  return out;
}

Tokens load_tokens(const std::string& path) {
  if (path.empty()) return {};
  const Json json = Json::parse(load_text("--tokens", path), nullptr, false);
  if (json.is_discarded()) throw UsageError("--tokens " + escaped(path) + " is not JSON");
  if (!json.is_object()) return {strings_of(json, path), strings_of(json, path)};
  for (const auto& [name, list] : json.items()) {
    if (name != "queries" && name != "keys")
      throw UsageError("--tokens " + escaped(path) + " may hold queries and keys: got " + escaped(name));
  }
  return {strings_of(json.value("queries", Json::array()), path), strings_of(json.value("keys", Json::array()), path)};
}

}  // namespace

std::string explorer_page(const std::string& qk, const std::string& tokens, const std::string& title, Context& context) {
  StateDict state = load_safetensors("--qk", qk);
  if (state.metadata.contains("explorer")) {
    if (!tokens.empty()) throw UsageError("--tokens are for the small form: " + escaped(qk) + " names its own");
    if (!title.empty()) throw UsageError("--title is for the small form: " + escaped(qk) + " has its own");
  } else {
    if (!title.empty()) state.metadata["title"] = title;
    const Tokens labels = load_tokens(tokens);
    state = about_file("--qk", qk, [&] { return view::explorer_of_heads(state, labels.queries, labels.keys, context); });
  }
  return about_file("--qk", qk, [&] { return view::render_explorer(state); });
}

}  // namespace qkv::cli
