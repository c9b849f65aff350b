// AttentionLM's parts: construction, names.
#include "lm/model.h"

#include <algorithm>

#include "core/check.h"
#include "lm/draw.h"
#include "nn/attention/check_shard.h"
#include "nn/parameters/parameters.h"
#include "qkv/nn/sharding.h"

namespace qkv::inline v0::lm {
namespace {

/// Each part draws from its own seed, so that adding a part changes no other.
enum Part : Index { kTok, kPos, kHead, kFirstLayer };

/// Names as in files: plain, and nanoGPT's.
constexpr nn::AttentionForm kPlain{.type = "AttentionLM",
    .name = "lm",
    .names = {"W_q", "W_k", "W_v", "W_qkv", "W_o"},
    .output = nn::OutputProjection::kRequired,
    .heads = true,
    .grouped = true,
    .bias = false};
constexpr nn::AttentionForm kBlocks{.type = "AttentionLM",
    .name = "lm",
    .names = {"c_q", "c_k", "c_v", "c_attn", "c_proj"},
    .merged = true,
    .output = nn::OutputProjection::kRequired,
    .heads = true,
    .grouped = true};

nn::LayerConfig attention_config(const AttentionLMConfig& c, std::uint64_t seed) {
  nn::LayerConfig attention{.embed_dim = c.embed_dim, .num_heads = c.num_heads, .num_kv_heads = c.num_kv_heads};
  if (c.positions == PositionKind::kRotary) attention.rotary = c.rotary;
  attention.dropout = attention.residual_dropout = static_cast<float>(c.dropout);
  attention.seed = seed;
  return attention;
}

Block make_block(const AttentionLMConfig& c, std::uint64_t seed, Index layer) {
  const Index part = kFirstLayer + 2 * layer;
  Block block{
      nn::AttentionLayer(c.blocks ? kBlocks : kPlain, attention_config(c, derived_seed(seed, Draw::kParameters, part))),
      {}, {}, {}};
  if (c.blocks) {
    block.ln_1.emplace(nn::LayerNormOptions{.embed_dim = c.embed_dim});
    block.ln_2.emplace(nn::LayerNormOptions{.embed_dim = c.embed_dim});
    block.mlp.emplace(
        nn::MlpOptions{.embed_dim = c.embed_dim, .seed = derived_seed(seed, Draw::kParameters, part + 1)});
  }
  return block;
}

}  // namespace

AttentionLM::Impl::Impl(const AttentionLMConfig& c, std::uint64_t seed)
    : config(checked(c)),
      tok({.num_embeddings = c.vocab_size,
          .embed_dim = c.embed_dim,
          .seed = derived_seed(seed, Draw::kParameters, kTok)}),
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
  nn::append_parameters(parameters, tok, config.blocks ? "transformer.wte." : "tok.");
  if (pos) nn::append_parameters(parameters, *pos, config.blocks ? "transformer.wpe." : "pos.");
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    Block& block = blocks[layer];
    const std::string number = std::to_string(layer) + ".";
    if (!config.blocks) {
      nn::append_parameters(parameters, block.attention, blocks.size() == 1 ? "attn." : "attn." + number);
      continue;
    }
    nn::append_parameters(parameters, *block.ln_1, "transformer.h." + number + "ln_1.");
    nn::append_parameters(parameters, block.attention, "transformer.h." + number + "attn.");
    nn::append_parameters(parameters, *block.ln_2, "transformer.h." + number + "ln_2.");
    nn::append_parameters(parameters, *block.mlp, "transformer.h." + number + "mlp.");
  }
  if (ln_f) nn::append_parameters(parameters, *ln_f, "transformer.ln_f.");
  nn::append_parameters(parameters, head, config.blocks ? "lm_head." : "head.");
}

void AttentionLM::Impl::embed(std::span<const Index> ids, std::span<const Index> positions, View<float, 2> h,
    Context& context, bool with_positions) const {
  tok.forward(ids, h, false, context);
  if (pos && with_positions) pos->forward(positions, h, true, context);
}

void AttentionLM::Impl::embed_backward(
    std::span<const Index> ids, std::span<const Index> positions, View<const float, 2> dh, Context& context) {
  tok.backward(ids, dh, context);
  if (pos) pos->backward(positions, dh, context);
}

std::uint64_t AttentionLM::Impl::attention_seed(std::uint64_t seed, Index layer) const {
  return derived_seed(seed, Draw::kDropout, 2 * layer);
}

Dropout AttentionLM::Impl::mlp_dropout(std::uint64_t seed, Index layer, Index first_sequence) const {
  return {.p = config.dropout,
      .seed = derived_seed(seed, Draw::kDropout, 2 * layer + 1),
      .training = training,
      .first_sequence = first_sequence};
}

AttentionLM::AttentionLM(const AttentionLMConfig& config, std::uint64_t seed)
    : Module("AttentionLM"), impl_(std::make_unique<Impl>(config, seed)) {}
AttentionLM::~AttentionLM() = default;
AttentionLM::AttentionLM(AttentionLM&&) noexcept = default;
AttentionLM& AttentionLM::operator=(AttentionLM&&) noexcept = default;

void AttentionLM::Impl::check_whole(const char* function) const {
  check<UnsupportedError>(!sum && blocks.front().attention.num_heads() == config.num_heads, function,
      "a shard has a part of the heads: use the whole model");
}

AttentionLM AttentionLM::clone() const {
  impl_->check_whole("AttentionLM::clone");
  AttentionLM copy(impl_->config);
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) {
    const std::span<const float> from = impl_->parameters[i].value;
    std::copy(from.begin(), from.end(), copy.impl_->parameters[i].value.begin());
  }
  copy.train(impl_->training);
  return copy;
}

AttentionLM AttentionLM::shard(Index part, Index parts, std::function<void(std::span<float>)> sum) const {
  check<OptionError>(parts >= 1 && impl_->config.num_kv_heads % parts == 0, "AttentionLM::shard",
      "parts must divide the key/value heads: got ", parts, " for ", impl_->config.num_kv_heads);
  AttentionLM made = clone();
  Impl& own = *made.impl_;
  for (Block& block : own.blocks) block.attention = nn::AttentionLayer(nn::shard(block.attention, part, parts));
  own.sum = std::move(sum);
  own.parameters.clear();
  own.collect_parameters();
  return made;
}

void AttentionLM::merge_shard(const AttentionLM& shard, Index part, Index parts) {
  Impl& whole = *impl_;
  const Impl& from = *shard.impl_;
  check<ShapeError>(from.blocks.size() == whole.blocks.size(), "AttentionLM::merge_shard",
      "the shard must have the layers of the model: got ", from.blocks.size(), " for ", whole.blocks.size());
  const AttentionLMConfig &own = whole.config, &its = from.config;
  check<ShapeError>(own.vocab_size == its.vocab_size && own.context == its.context && own.blocks == its.blocks &&
                        own.positions == its.positions,
      "AttentionLM::merge_shard", "the shard must be of a model of the same sizes: vocabulary ", own.vocab_size,
      ", context ", own.context, "; got ", its.vocab_size, " and ", its.context, ", or blocks or positions differ");
  for (std::size_t layer = 0; layer < whole.blocks.size(); ++layer)
    nn::check_shard(whole.blocks[layer].attention, from.blocks[layer].attention, part, parts, "merge_shard");
  if (part == 0) {
    std::map<std::string_view, std::span<const float>> values;
    for (const nn::Parameter& parameter : from.parameters) values[parameter.name] = parameter.value;
    for (const nn::Parameter& parameter : whole.parameters) {
      const auto found = values.find(parameter.name);
      if (found != values.end() && found->second.size() == parameter.value.size())
        std::ranges::copy(found->second, parameter.value.begin());
    }
  }
  for (std::size_t layer = 0; layer < whole.blocks.size(); ++layer)
    nn::merge_shard(whole.blocks[layer].attention, from.blocks[layer].attention, part, parts);
}

const AttentionLMConfig& AttentionLM::config() const { return impl_->config; }
void AttentionLM::set_causal(bool causal) { impl_->config.causal = causal; }

void AttentionLM::train(bool on) {
  impl_->training = on;
  for (Block& block : impl_->blocks) block.attention.train(on);
}

std::vector<nn::Parameter> AttentionLM::parameters() { return impl_->parameters; }

void AttentionLM::load_state_dict(const StateDict& state, std::string_view prefix) {
  const std::string wte = std::string(prefix) + "transformer.wte.weight",
                    lm_head = std::string(prefix) + "lm_head.weight";
  if (!impl_->config.blocks || state.contains(lm_head) || !state.contains(wte)) {
    nn::Module::load_state_dict(state, prefix);
    return;
  }
  StateDict untied = state.clone();
  untied.add(lm_head, state.at(wte).clone());
  nn::Module::load_state_dict(untied, prefix);
}

void check_heads(const AttentionLMConfig& config, const HeadSet& heads, const char* function) {
  for (const HeadIndex& one : heads) {
    check<OptionError>(one.layer >= 0 && one.layer < config.num_layers && one.head >= 0 && one.head < config.num_heads,
        function, "heads to leave out must exist in the model, ", config.num_layers, " layers of ", config.num_heads,
        " heads, counted from 0: got head ", one.head, " of layer ", one.layer);
  }
}

void heads_of(const HeadSet& heads, Index layer, std::vector<Index>& found) {
  found.clear();
  for (const HeadIndex& one : heads)
    if (one.layer == layer) found.push_back(one.head);
}

void add_to(Tensor<float>& out, const Tensor<float>& add) {
  float* to = out.data();
  const float* from = add.data();
  for (Index i = 0; i < out.count(); ++i) to[i] += from[i];
}

}  // namespace qkv::inline v0::lm
