// The JSON of the explorer's file: one view.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "qkv/state_dict.h"

namespace qkv::inline v0::view {

using Json = nlohmann::json;

struct OneView {
  std::string name;
  Index q_len = 0, kv_len = 0;  ///< of all layers
  Json layers;
};

/// Adds title, texts and the view to `json`, and all of it to the file's metadata. Tokens: none, or one for each
/// position.
void describe(StateDict& file, Json json, const std::string& title, OneView view,
    const std::vector<std::string>& query_tokens, const std::vector<std::string>& key_tokens);

/// Whether queries and keys are one text.
inline bool is_one_text(Index q_len, Index kv_len, const std::vector<std::string>& query_tokens,
    const std::vector<std::string>& key_tokens) {
  return q_len == kv_len && query_tokens == key_tokens;
}

}  // namespace qkv::inline v0::view
