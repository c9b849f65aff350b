// The table of spellings of attention's parameters, and how a state dict is read through it.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "nn/parameters/parameters.h"
#include "qkv/nn/attention_layer.h"

namespace qkv::inline v0::nn {

/// The matrices of an attention layer. kMerged holds the rows of the three before it.
enum Role : std::size_t { kQuery, kKey, kValue, kMerged, kOutput, kNumRoles };

/// A file's contents: tensors by role, null where absent, and the names as they were.
struct NamedTensors {
  bool merged = false;
  std::array<const AnyTensor*, kNumRoles> weights{}, biases{};
  std::array<std::string, kNumRoles> weight_names, bias_names;
  const AnyTensor *q_norm = nullptr, *k_norm = nullptr;  // both or none
};

/// The names of the norms' weights.
inline constexpr std::string_view kQueryNorm = "q_norm.weight", kKeyNorm = "k_norm.weight";

/// The caller's options, checked; the form's defaults where they are not given, nothing where the form does not read
/// them.
LayerConfig resolved(const AttentionForm& form, const LayerConfig& given);

/// Reads `state` under `prefix` in any spelling. Throws as Module::load_state_dict does.
NamedTensors read_attention_parameters(
    const AttentionForm& form, const LayerConfig& config, const StateDict& state, std::string_view prefix);

/// Sizes deduced from the attention matrices in a file, in any spelling; 0 where it does not tell them.
struct FoundSizes {
  Index embed_dim = 0;  // E
  Index width = 0;      // W
  Index kv_width = 0;   // Wkv
  Index head_dim = 0;   // D, from the norms of grouped heads
};
/// Of most matrices; of grouped heads, from the output projection and the rows of k.
FoundSizes find_sizes(const StateDict& state, bool grouped);

/// Every spelling that loading accepts, by role, and what it leaves out: for error texts. `output`: with those of an
/// output projection.
std::string spellings_text(bool output);

/// "in_proj" -> "in_proj_weight", any other -> "NAME.weight"; the same for "bias".
std::string full_name(std::string_view matrix, bool bias);

}  // namespace qkv::inline v0::nn
