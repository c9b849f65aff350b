// AttentionLM's parts: configuration, construction, names.
#include "lm/model.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"
#include "lm/draw.h"

namespace qkv {
inline namespace v0 {
namespace lm {
namespace {

const AttentionLMConfig& checked(const AttentionLMConfig& c) {
  constexpr const char* kFunction = "AttentionLM";
  check<OptionError>(c.vocab_size >= 1 && c.context >= 1 && c.embed_dim >= 1 && c.num_heads >= 1 && c.num_layers >= 1,
                     kFunction, "vocab_size, context, embed_dim, num_heads and num_layers must be at least 1: got ",
                     c.vocab_size, ", ", c.context, ", ", c.embed_dim, ", ", c.num_heads, ", ", c.num_layers);
  // 2^20 keeps products of two sizes far from overflow; a file's metadata may hold anything.
  constexpr Index kLargest = Index{1} << 20;
  check<OptionError>(std::max({c.vocab_size, c.context, c.embed_dim, c.num_layers}) <= kLargest, kFunction,
                     "vocab_size, context, embed_dim and num_layers must be at most ", kLargest, ": got ", c.vocab_size, ", ",
                     c.context, ", ", c.embed_dim, ", ", c.num_layers);
  check<OptionError>(c.embed_dim % c.num_heads == 0, kFunction, "num_heads must divide embed_dim: got ", c.num_heads,
                     " heads for embed_dim ", c.embed_dim);
  check<OptionError>(c.num_kv_heads >= 0 && (c.num_kv_heads == 0 || c.num_heads % c.num_kv_heads == 0), kFunction,
                     "num_kv_heads must divide num_heads (0: as many): got ", c.num_kv_heads, " for ", c.num_heads, " heads");
  check<OptionError>(c.positions == PositionKind::kLearned || c.embed_dim / c.num_heads % 2 == 0, kFunction,
                     "rotary positions need an even head width embed_dim / num_heads: got ", c.embed_dim / c.num_heads);
  check<OptionError>(c.dropout >= 0 && c.dropout <= 1, kFunction, "dropout must be in [0, 1]: got ", c.dropout);
  return c;
}

/// Each part draws from an own seed, so that adding a part changes no other.
enum Part : Index { kTok, kPos, kHead, kFirstLayer };

nn::AttentionLayerConfig attention_config(const AttentionLMConfig& c, std::uint64_t seed) {
  nn::AttentionLayerConfig attention{.type = "AttentionLM", .name = "lm", .embed_dim = c.embed_dim, .num_heads = c.num_heads};
  attention.num_kv_heads = c.num_kv_heads;
  if (c.positions == PositionKind::kRotary) attention.rotary.emplace();
  attention.bias = c.blocks;
  attention.output = nn::OutputProjection::kRequired;
  attention.merged = c.blocks;
  if (c.blocks) {
    attention.names = {"c_q", "c_k", "c_v", "c_attn", "c_proj"};
  } else {
    attention.names = {"W_q", "W_k", "W_v", "W_qkv", "W_o"};
  }
  attention.dropout = static_cast<float>(c.dropout);
  attention.residual_dropout = static_cast<float>(c.dropout);
  attention.seed = seed;
  return attention;
}

Block make_block(const AttentionLMConfig& c, std::uint64_t seed, Index layer) {
  const Index part = kFirstLayer + 2 * layer;
  Block block{nn::AttentionLayer(attention_config(c, derived_seed(seed, Draw::kParameters, part))), {}, {}, {}};
  if (c.blocks) {
    block.ln_1.emplace(nn::LayerNormOptions{.embed_dim = c.embed_dim});
    block.ln_2.emplace(nn::LayerNormOptions{.embed_dim = c.embed_dim});
    block.mlp.emplace(nn::MlpOptions{.embed_dim = c.embed_dim, .seed = derived_seed(seed, Draw::kParameters, part + 1)});
  }
  return block;
}

void append(std::vector<nn::Parameter>& all, nn::Module& module, const std::string& prefix) {
  for (nn::Parameter& parameter : module.parameters()) {
    parameter.name = prefix + parameter.name;
    all.push_back(std::move(parameter));
  }
}

constexpr const char* kPrefix = "lm.";

/// `fallback`, where given, is what files older than the entry mean.
Index read_index(const std::map<std::string, std::string>& metadata, const std::string& name,
                 std::optional<Index> fallback = {}) {
  if (fallback && !metadata.contains(kPrefix + name)) return *fallback;
  const auto entry = metadata.find(kPrefix + name);
  check<OptionError>(entry != metadata.end(), "AttentionLMConfig::from_metadata", "the file must have the metadata entry ",
                     kPrefix, name, ": got none");
  const std::string& text = entry->second;
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<OptionError>(error == std::errc() && end == text.data() + text.size() && value >= 0, "AttentionLMConfig::from_metadata",
                     kPrefix, name, " must be a whole number, not negative: got \"", text.substr(0, 40), "\"");
  return value;
}

bool read_flag(const std::map<std::string, std::string>& metadata, const std::string& name,
               std::optional<Index> fallback = {}) {
  const Index value = read_index(metadata, name, fallback);
  check<OptionError>(value <= 1, "AttentionLMConfig::from_metadata", kPrefix, name, " must be 0 or 1: got ", value);
  return value == 1;
}

// Dropout is kept in units of 2^-16, which is what the generator can tell apart.
constexpr double kDropoutUnit = 65536;

}  // namespace

void AttentionLMConfig::save_metadata(std::map<std::string, std::string>& metadata) const {
  const auto set = [&](const char* name, Index value) { metadata[std::string(kPrefix) + name] = std::to_string(value); };
  set("vocab_size", vocab_size);
  set("context", context);
  set("embed_dim", embed_dim);
  set("num_heads", num_heads);
  set("num_kv_heads", num_kv_heads == 0 ? num_heads : num_kv_heads);
  set("num_layers", num_layers);
  set("rotary", positions == PositionKind::kRotary ? 1 : 0);
  set("blocks", blocks ? 1 : 0);
  set("causal", causal ? 1 : 0);
  set("dropout_65536ths", static_cast<Index>(std::lround(dropout * kDropoutUnit)));
}

AttentionLMConfig AttentionLMConfig::from_metadata(const std::map<std::string, std::string>& metadata) {
  AttentionLMConfig config;
  config.vocab_size = read_index(metadata, "vocab_size");
  config.context = read_index(metadata, "context");
  config.embed_dim = read_index(metadata, "embed_dim");
  config.num_heads = read_index(metadata, "num_heads");
  config.num_kv_heads = read_index(metadata, "num_kv_heads", config.num_heads);
  config.num_layers = read_index(metadata, "num_layers");
  config.positions = read_flag(metadata, "rotary", 0) ? PositionKind::kRotary : PositionKind::kLearned;
  config.blocks = read_flag(metadata, "blocks");
  config.causal = read_flag(metadata, "causal");
  config.dropout = static_cast<double>(read_index(metadata, "dropout_65536ths")) / kDropoutUnit;
  return checked(config);
}

AttentionLM::Impl::Impl(const AttentionLMConfig& c, std::uint64_t seed)
    : config(checked(c)),
      tok({.num_embeddings = c.vocab_size, .embed_dim = c.embed_dim, .seed = derived_seed(seed, Draw::kParameters, kTok)}),
      head({.in_features = c.embed_dim,
            .out_features = c.vocab_size,
            .bias = !c.blocks,
            .seed = derived_seed(seed, Draw::kParameters, kHead)}) {
  config.num_kv_heads = c.num_kv_heads == 0 ? c.num_heads : c.num_kv_heads;
  if (c.positions == PositionKind::kLearned) {
    pos.emplace(nn::EmbeddingOptions{
        .num_embeddings = c.context, .embed_dim = c.embed_dim, .seed = derived_seed(seed, Draw::kParameters, kPos)});
  }
  for (Index layer = 0; layer < c.num_layers; ++layer) blocks.push_back(make_block(c, seed, layer));
  if (c.blocks) ln_f.emplace(nn::LayerNormOptions{.embed_dim = c.embed_dim});
  collect_parameters();
}

void AttentionLM::Impl::collect_parameters() {
  append(parameters, tok, config.blocks ? "transformer.wte." : "tok.");
  if (pos) append(parameters, *pos, config.blocks ? "transformer.wpe." : "pos.");
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    Block& block = blocks[layer];
    const std::string number = std::to_string(layer) + ".";
    if (!config.blocks) {
      append(parameters, block.attention, blocks.size() == 1 ? "attn." : "attn." + number);
      continue;
    }
    append(parameters, *block.ln_1, "transformer.h." + number + "ln_1.");
    append(parameters, block.attention, "transformer.h." + number + "attn.");
    append(parameters, *block.ln_2, "transformer.h." + number + "ln_2.");
    append(parameters, *block.mlp, "transformer.h." + number + "mlp.");
  }
  if (ln_f) append(parameters, *ln_f, "transformer.ln_f.");
  append(parameters, head, config.blocks ? "lm_head." : "head.");
}

void AttentionLM::Impl::embed(std::span<const Index> ids, std::span<const Index> positions, View<float, 2> h,
                              Context& context) const {
  tok.forward(ids, h, false, context);
  if (pos) pos->forward(positions, h, true, context);
}

void AttentionLM::Impl::embed_backward(std::span<const Index> ids, std::span<const Index> positions, View<const float, 2> dh,
                                       Context& context) {
  tok.backward(ids, dh, context);
  if (pos) pos->backward(positions, dh, context);
}

std::uint64_t AttentionLM::Impl::attention_seed(std::uint64_t seed, Index layer) const {
  return derived_seed(seed, Draw::kDropout, 2 * layer);
}

Dropout AttentionLM::Impl::mlp_dropout(std::uint64_t seed, Index layer) const {
  return {.p = config.dropout, .seed = derived_seed(seed, Draw::kDropout, 2 * layer + 1), .training = training};
}

AttentionLM::AttentionLM(const AttentionLMConfig& config, std::uint64_t seed) : impl_(std::make_unique<Impl>(config, seed)) {}
AttentionLM::~AttentionLM() = default;
AttentionLM::AttentionLM(AttentionLM&&) noexcept = default;
AttentionLM& AttentionLM::operator=(AttentionLM&&) noexcept = default;

AttentionLM AttentionLM::clone() const {
  AttentionLM copy(impl_->config);
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) {
    const std::span<const float> from = impl_->parameters[i].value;
    std::copy(from.begin(), from.end(), copy.impl_->parameters[i].value.begin());
  }
  copy.train(impl_->training);
  return copy;
}

const AttentionLMConfig& AttentionLM::config() const { return impl_->config; }
void AttentionLM::set_causal(bool causal) { impl_->config.causal = causal; }

void AttentionLM::train(bool on) {
  impl_->training = on;
  for (Block& block : impl_->blocks) block.attention.train(on);
}

std::vector<nn::Parameter> AttentionLM::parameters() { return impl_->parameters; }

void AttentionLM::load_state_dict(const StateDict& state, std::string_view prefix) {
  const std::string wte = std::string(prefix) + "transformer.wte.weight", lm_head = std::string(prefix) + "lm_head.weight";
  if (!impl_->config.blocks || state.contains(lm_head) || !state.contains(wte)) {
    nn::Module::load_state_dict(state, prefix);
    return;
  }
  StateDict untied = state.clone();
  untied.add(lm_head, state.at(wte).clone());
  nn::Module::load_state_dict(untied, prefix);
}

std::string_view AttentionLM::type_name() const { return "AttentionLM"; }

void add_to(Tensor<float>& out, const Tensor<float>& add) {
  float* to = out.data();
  const float* from = add.data();
  for (Index i = 0; i < out.count(); ++i) to[i] += from[i];
}

}  // namespace lm
}  // namespace v0
}  // namespace qkv
