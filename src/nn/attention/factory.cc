// Layers by their names on the command line, and sizes deduced from a file.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "nn/parameters/synonyms.h"
#include "qkv/nn/average.h"
#include "qkv/nn/grouped_query_attention.h"
#include "qkv/nn/multi_head_attention.h"
#include "qkv/nn/self_attention.h"

namespace qkv::inline v0::nn {
namespace {

using Maker = std::unique_ptr<Layer> (*)(const LayerConfig&);

template <class Form>
std::unique_ptr<Layer> make(const LayerConfig& config) {
  return std::make_unique<Form>(config);
}

constexpr std::string_view kMultiHeadName = "mha", kGroupedName = "grouped-query";
constexpr std::array<std::string_view, 10> kNames = {"average", "fixed-weights",  "v1",          "v2",           "v3",
                                                     "v4",      "self-attention", "single-head", kMultiHeadName, kGroupedName};
constexpr std::array<Maker, kNames.size()> kMakers = {
    make<AveragePooling>,     make<FixedWeights>,         make<SelfAttentionV1>, make<SelfAttentionV2>,
    make<SelfAttentionV3>,    make<SelfAttentionV4>,      make<SelfAttention>,   make<SingleHeadAttention>,
    make<MultiHeadAttention>, make<GroupedQueryAttention>};

/// Fills sizes that are 0, for a layer whose k and v may have fewer rows than q.
void take_grouped_sizes(const StateDict& state, LayerConfig& config) {
  const FoundGroupedSizes found = find_grouped_sizes(state);
  if (config.embed_dim == 0) config.embed_dim = found.embed_dim;
  if (config.head_dim == 0) config.head_dim = found.head_dim;
  if (config.num_heads == 0 && config.head_dim > 0 && found.width % config.head_dim == 0) {
    config.num_heads = found.width / config.head_dim;
  }
  if (config.head_dim == 0 && config.num_heads > 0) config.head_dim = found.width / config.num_heads;
  if (config.num_kv_heads == 0 && config.head_dim > 0) config.num_kv_heads = found.kv_width / config.head_dim;
}

/// Fills sizes that are 0 from the tensors in the file.
void take_sizes(const StateDict& state, LayerConfig& config) {
  const AnyTensor* w = state.find("w");
  if (config.length == 0 && w != nullptr && w->sizes.size() == 1) config.length = w->sizes[0];
  const FoundSizes found = find_sizes(state);
  if (config.embed_dim == 0) config.embed_dim = found.embed_dim;
  if (config.d_k == 0) config.d_k = found.width;
}

/// One head or another: the weights have the same shape, and the output is another.
void require_heads(std::string_view name, const StateDict& state, LayerConfig& config) {
  if ((name != kMultiHeadName && name != kGroupedName) || config.num_heads != 0) return;
  const std::vector<Index> possible = possible_heads(name, state);
  if (possible.empty()) return;  // no weights of attention: that is what will be said
  if (possible.size() == 1) {
    config.num_heads = possible[0];
    return;
  }
  std::string numbers;
  for (const Index heads : possible) numbers += (numbers.empty() ? "" : ", ") + std::to_string(heads);
  fail<OptionError>("load_layer", "num_heads of ", name, " must be given, since weights of one shape fit several: here ",
                    numbers, ": got none");
}

}  // namespace

std::span<const std::string_view> layer_names() { return kNames; }

std::vector<Index> possible_heads(std::string_view name, const StateDict& state) {
  if (name != kMultiHeadName && name != kGroupedName) return {1};
  const FoundGroupedSizes grouped = find_grouped_sizes(state);
  const bool shared = name == kGroupedName;
  const Index width = shared ? grouped.width : find_sizes(state).width, kv_width = shared ? grouped.kv_width : width;
  std::vector<Index> possible;
  for (Index heads = 1; heads <= width; ++heads) {
    const Index head_dim = width / heads;  // D
    if (width % heads != 0 || kv_width % head_dim != 0 || kv_width == 0) continue;
    if (shared && grouped.head_dim != 0 && grouped.head_dim != head_dim) continue;
    if (heads % (kv_width / head_dim) == 0) possible.push_back(heads);
  }
  return possible;
}

std::unique_ptr<Layer> make_layer(std::string_view name, const LayerConfig& config) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) {
    std::string names;
    for (const std::string_view one : kNames) names += (names.empty() ? "" : ", ") + std::string(one);
    fail<OptionError>("make_layer", "the layer must be one of ", names, ": got ", name);
  }
  return kMakers[static_cast<std::size_t>(found - kNames.begin())](config);
}

std::unique_ptr<Layer> load_layer(std::string_view name, const StateDict& state, LayerConfig config) {
  require_heads(name, state, config);
  if (name == kGroupedName) {
    take_grouped_sizes(state, config);
  } else {
    take_sizes(state, config);
  }
  const bool sizes_known = name == "fixed-weights" ? config.length > 0 : name == "average" || config.embed_dim > 0;
  if (!sizes_known && std::ranges::find(kNames, name) != kNames.end()) {
    // A layer of any size says which names it expects; its sizes would mislead, so only the names are given.
    config.num_heads = std::max<Index>(config.num_heads, 1);
    config.embed_dim = std::max<Index>(config.embed_dim, config.num_heads);
    config.length = std::max<Index>(config.length, 1);
    std::string expected;
    for (const Parameter& one : make_layer(name, config)->parameters()) expected += (expected.empty() ? "" : ", ") + one.name;
    std::string got;
    for (const StateDict::Entry& entry : state.entries()) got += (got.empty() ? "" : ", ") + entry.name;
    const bool spellings = name != "fixed-weights";
    fail<OptionError>("load_layer", "the state dict must hold the parameters of ", name, ", ", expected, ": got ",
                      got.empty() ? "nothing" : got, spellings ? "; any of these names will do: " : "",
                      spellings ? spellings_text(name != "v1" && name != "self-attention") : "");
  }
  auto layer = make_layer(name, config);
  layer->load_state_dict(state);
  return layer;
}

}  // namespace qkv::inline v0::nn
