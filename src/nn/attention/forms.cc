// The table of forms, and layers by their names on the command line, with sizes deduced from a file.
#include <algorithm>

#include "core/check.h"
#include "core/listed.h"
#include "nn/parameters/synonyms.h"
#include "qkv/nn/average.h"
#include "qkv/nn/self_attention.h"

namespace qkv::inline v0::nn {
namespace {

using RoleNames = std::array<std::string_view, 5>;
constexpr RoleNames kLadder = {"query_proj", "key_proj", "value_proj", "proj", "output_proj"},
                    kHeads = {"q_proj", "k_proj", "v_proj", "in_proj", "o_proj"};
constexpr auto kOptional = OutputProjection::kOptional, kRequired = OutputProjection::kRequired;

/// By Form. self_attention.h begins with the same table for readers.
constexpr std::array<AttentionForm, 8> kForms = {{
    {.type = "SelfAttentionV1", .name = "v1", .names = kLadder},
    {.type = "SelfAttentionV2", .name = "v2", .names = kLadder, .merged = true, .output = kOptional},
    {.type = "SelfAttentionV3", .name = "v3", .names = kLadder, .merged = true, .output = kRequired, .dropout = 0.1F},
    {.type = "SelfAttentionV4", .name = "v4", .names = kLadder, .output = kRequired, .dropout = 0.1F},
    {.type = "SelfAttention",
        .name = "self-attention",
        .names = {"W_Q", "W_K", "W_V", "proj", "W_O"},
        .own_width = true},
    {.type = "SingleHeadAttention",
        .name = "single-head",
        .names = {"W_q", "W_k", "W_v", "proj", "W_o"},
        .output = kRequired,
        .bias = false,
        .causal = true,
        .empty_row = EmptyRow::kNaN,
        .dropout = 0.1F,
        .residual_dropout = 0.1F},
    {.type = "MultiHeadAttention",
        .name = "mha",
        .names = kHeads,
        .output = kRequired,
        .heads = true,
        .dropout = 0.1F,
        .residual_dropout = 0.1F},
    {.type = "GroupedQueryAttention",
        .name = "grouped-query",
        .names = kHeads,
        .output = kRequired,
        .heads = true,
        .grouped = true,
        .bias = false,
        .empty_row = EmptyRow::kZero},
}};

/// `from` in another form: same sizes, options and parameters.
template <class To> To converted(const AttentionLayer& from) {
  LayerConfig config = from.config();
  config.bias = from.has_bias();
  To to(config);
  to.copy_parameters(from);
  to.train(from.training());
  return to;
}

constexpr std::string_view kAverage = "average", kFixedWeights = "fixed-weights";

/// The ladder from the bottom up.
constexpr auto kNames = [] {
  std::array<std::string_view, 2 + kForms.size()> names = {kAverage, kFixedWeights};
  std::ranges::transform(kForms, names.begin() + 2, &AttentionForm::name);
  return names;
}();

/// The form of this name; null for the layers without attention, and for a name that none has.
const AttentionForm* form_named(std::string_view name) {
  const auto* found = std::ranges::find(kForms, name, &AttentionForm::name);
  return found == kForms.end() ? nullptr : found;
}

template <std::size_t... n>
std::unique_ptr<Layer> make_form(std::ptrdiff_t form, const LayerConfig& config, std::index_sequence<n...>) {
  std::unique_ptr<Layer> made;
  ((form == n ? void(made = std::make_unique<FormLayer<static_cast<Form>(n)>>(config)) : void()), ...);
  return made;
}

/// Fills sizes that are 0 from the tensors in the file.
void fill_sizes(const AttentionForm* form, const StateDict& state, LayerConfig& config) {
  const auto fill = [](Index& size, Index found) {
    if (size == 0) size = found;
  };
  const AnyTensor* w = state.find("w");
  if (w != nullptr && w->sizes.size() == 1) fill(config.length, w->sizes[0]);
  const FoundSizes found = find_sizes(state, form != nullptr && form->grouped);
  fill(config.embed_dim, found.embed_dim);
  fill(config.d_k, found.width);
  fill(config.head_dim, found.head_dim);
  if (config.head_dim > 0 && found.width % config.head_dim == 0) fill(config.num_heads, found.width / config.head_dim);
  if (config.num_heads > 0) fill(config.head_dim, found.width / config.num_heads);
  if (config.head_dim > 0) fill(config.num_kv_heads, found.kv_width / config.head_dim);
}

/// One head or another: the weights have the same shape, and the output is another.
void require_heads(std::string_view name, const StateDict& state, LayerConfig& config) {
  const AttentionForm* form = form_named(name);
  if (form == nullptr || !form->heads || config.num_heads != 0) return;
  const std::vector<Index> possible = possible_heads(name, state);
  if (possible.empty()) return;  // no weights of attention: that is what will be said
  if (possible.size() == 1) {
    config.num_heads = possible[0];
    return;
  }
  fail<OptionError>("load_layer", "num_heads of ", name,
      " must be given, since weights of one shape fit several: here ",
      listed(possible, [](Index heads) { return std::to_string(heads); }), ": got none");
}

}  // namespace

const AttentionForm& form_of(Form form) { return kForms[static_cast<std::size_t>(form)]; }

SelfAttentionV1 to_v1(const SelfAttentionV2& layer) { return converted<SelfAttentionV1>(layer); }
SelfAttentionV2 to_v2(const SelfAttentionV1& layer) { return converted<SelfAttentionV2>(layer); }
SelfAttentionV3 to_v3(const SelfAttentionV4& layer) { return converted<SelfAttentionV3>(layer); }
SelfAttentionV4 to_v4(const SelfAttentionV3& layer) { return converted<SelfAttentionV4>(layer); }

std::span<const std::string_view> layer_names() { return kNames; }

std::vector<Index> possible_heads(std::string_view name, const StateDict& state) {
  const AttentionForm* form = form_named(name);
  if (form == nullptr || !form->heads) return {1};
  const FoundSizes found = find_sizes(state, form->grouped);
  const Index width = found.width, kv_width = found.kv_width;
  std::vector<Index> possible;
  const auto add = [&](Index heads) {
    const Index head_dim = width / heads;  // D
    if (kv_width == 0 || kv_width % head_dim != 0 || (found.head_dim != 0 && found.head_dim != head_dim)) return;
    if (heads % (kv_width / head_dim) == 0) possible.push_back(heads);
  };
  for (Index heads = 1; heads <= width / heads; ++heads) {  // a divisor and its other half
    if (width % heads != 0) continue;
    add(heads);
    if (heads != width / heads) add(width / heads);
  }
  std::sort(possible.begin(), possible.end());
  return possible;
}

std::unique_ptr<Layer> make_layer(std::string_view name, const LayerConfig& config) {
  if (name == kAverage) return std::make_unique<AveragePooling>(config);
  if (name == kFixedWeights) return std::make_unique<FixedWeights>(config);
  const AttentionForm* form = form_named(name);
  check<OptionError>(
      form != nullptr, "make_layer", "the layer must be one of ",
      [] { return listed(kNames, [](std::string_view one) { return std::string(one); }); }, ": got ", name);
  return make_form(form - kForms.data(), config, std::make_index_sequence<kForms.size()>());
}

std::unique_ptr<Layer> load_layer(std::string_view name, const StateDict& state, LayerConfig config) {
  require_heads(name, state, config);
  const AttentionForm* form = form_named(name);
  fill_sizes(form, state, config);
  const bool sizes_known = name == kFixedWeights ? config.length > 0 : name == kAverage || config.embed_dim > 0;
  if (!sizes_known && std::ranges::find(kNames, name) != kNames.end()) {
    // A layer of any size says which names it expects; its sizes would mislead, so only the names are given.
    config.num_heads = std::max<Index>(config.num_heads, 1);
    config.embed_dim = std::max<Index>(config.embed_dim, config.num_heads);
    config.length = std::max<Index>(config.length, 1);
    fail<OptionError>("load_layer", "the state dict must hold the parameters of ", name, ", ",
        listed(make_layer(name, config)->parameters(), [](const Parameter& one) { return one.name; }), ": got ",
        state.size() == 0 ? "nothing" : listed(state.entries(), [](const auto& entry) { return entry.name; }),
        form != nullptr ? "; any of these names will do: " : "",
        form != nullptr ? spellings_text(form->output != OutputProjection::kNone) : "");
  }
  // Before a layer is made: a file of one long row would ask for the square of it.
  if (form != nullptr) read_attention_parameters(*form, resolved(*form, config), state, {});
  auto layer = make_layer(name, config);
  layer->load_state_dict(state);
  return layer;
}

}  // namespace qkv::inline v0::nn
