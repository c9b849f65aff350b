// The one table of spellings of attention's parameters, and how a state dict is read through it. Not: storage
// (attention_layer.cc).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "nn/parameters.h"
#include "qkv/nn/attention_layer.h"

namespace qkv {
inline namespace v0 {
namespace nn {

/// The matrices of an attention layer. kMerged holds the rows of the three before it.
enum Role : std::size_t { kQuery, kKey, kValue, kMerged, kOutput, kNumRoles };

/// What a file names: tensors by role, null where absent, and the names as they came.
struct NamedTensors {
  bool merged = false;
  std::array<const AnyTensor*, kNumRoles> weights{}, biases{};
  std::array<std::string, kNumRoles> weight_names, bias_names;
  const AnyTensor *q_norm = nullptr, *k_norm = nullptr;  // both or none
};

/// The names of what q and k are normalised with.
inline constexpr std::string_view kQueryNorm = "q_norm.weight", kKeyNorm = "k_norm.weight";

/// What a layer needs to judge a file.
struct AttentionSizes {
  std::string_view type;        // for error texts
  Index embed_dim = 0;          // E
  Index width = 0;              // W: rows of q, columns of the output projection
  Index kv_width = 0;           // Wkv: rows of k and of v
  Index head_dim = 0;           // D
  bool grouped = false;         // norms are known, and biases of q, k, v and of the output come and go apart
  QkNorm norm = QkNorm::kNone;  // must be in the file; kNone: the file decides
  OutputProjection output = OutputProjection::kNone;
  bool merged = false;                                 // the layer's own form and names: what a file
  std::array<std::string_view, kNumRoles> names = {};  // that says nothing else is expected to hold
};

/// Reads `state` under `prefix` by any spelling. Throws as Module::load_state_dict says.
NamedTensors read_attention_parameters(const AttentionSizes& sizes, const StateDict& state, std::string_view prefix);

/// Sizes that the file alone knows: those of most matrices of attention in it, by any spelling; 0 when there is none.
struct FoundSizes {
  Index embed_dim = 0;  // E
  Index width = 0;      // W
  bool operator==(const FoundSizes&) const = default;
};
FoundSizes find_sizes(const StateDict& state);

/// The same of grouped heads, by the output projection and the rows of k; and the head width that norms tell, 0 where they do
/// not.
struct FoundGroupedSizes {
  Index embed_dim = 0;  // E
  Index width = 0;      // W
  Index kv_width = 0;   // Wkv
  Index head_dim = 0;   // D
};
FoundGroupedSizes find_grouped_sizes(const StateDict& state);

/// "in_proj" -> "in_proj_weight", any other -> "NAME.weight"; the same for "bias".
std::string full_name(std::string_view matrix, bool bias);

}  // namespace nn
}  // namespace v0
}  // namespace qkv
