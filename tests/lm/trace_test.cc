// Heads that are left out, and what AttentionLM::trace shows of the others.
#include <algorithm>
#include <cmath>

#include "lm/lm_test_support.h"

namespace qkv {
namespace {

using lm::AttentionLM;
using lm::AttentionLMConfig;

constexpr Index kVocab = 7;

double wide(auto x) { return static_cast<double>(x); }
std::size_t at(Index n) { return static_cast<std::size_t>(n); }

lm::Batch batch_of(const AttentionLMConfig& config, Index rows = 3) {
  lm::Batch batch;
  lm::BatchSource::previous(kVocab, {rows, config.context}, 2).fill(0, batch);
  return batch;
}

/// Several heads, layers, shared keys, blocks, rotary positions, an open mask; the first's head is folded.
std::vector<AttentionLMConfig> configs() {
  AttentionLMConfig folded{.vocab_size = kVocab, .num_heads = 4, .num_kv_heads = 2}, open = test::blocks_config();
  open.causal = false;
  return {folded, {.vocab_size = kVocab, .context = 9, .embed_dim = 24, .num_heads = 3, .num_layers = 2},
      test::blocks_config(), test::grouped_rotary_config(false), test::grouped_rotary_config(true), open};
}

nn::Parameter parameter_of(AttentionLM& model, const std::string& name) {
  for (const nn::Parameter& parameter : model.parameters())
    if (parameter.name == name) return parameter;
  ADD_FAILURE() << name;
  return {};
}

/// W_o [E, W].
View<float, 2> output_of(AttentionLM& model, Index layer) {
  std::vector<nn::Parameter> found;
  for (const nn::Parameter& one : model.parameters())
    if (one.name.ends_with("W_o.weight") || one.name.ends_with("attn.c_proj.weight")) found.push_back(one);
  const nn::Parameter& one = found.at(at(layer));
  return {one.value.data(), {one.sizes[0], one.sizes[1]}};
}

TEST(Cut, IsAnOutputProjectionWithoutTheHeadsColumns) {
  for (const AttentionLMConfig& config : configs()) {
    SCOPED_TRACE(config.num_heads);
    const lm::Batch batch = batch_of(config);
    const Index depth = config.embed_dim / config.num_heads, last = config.num_layers - 1;
    const lm::HeadSet cut{{0, 1}, {last, config.num_heads - 1}};
    AttentionLM model(config, 3), zeroed = model.clone();
    for (const auto& [layer, head] : cut)
      for (Index e = 0; e < config.embed_dim; ++e) std::fill_n(&output_of(zeroed, layer)(e, head * depth), depth, 0.0F);
    const Tensor<float> found = model.logits(batch.inputs, Context::default_context(), cut);
    EXPECT_TRUE(std::ranges::equal(found.span(), zeroed.logits(batch.inputs).span()));
    EXPECT_FALSE(std::ranges::equal(found.span(), model.logits(batch.inputs).span()));
  }
}

TEST(Cut, ErrorsNameTheHeadAndWhatThereIs) {
  AttentionLM model(test::blocks_config());
  const lm::Batch batch = batch_of(model.config());
  for (const lm::HeadSet& cut : {lm::HeadSet{{0, 2}}, {{2, 0}}, {{0, 0}, {-1, 1}}}) {
    test::expect_error<OptionError>([&] { (void)model.logits(batch.inputs, Context::default_context(), cut); },
        {"2 layers of 2 heads",
            "head " + std::to_string(cut.back().head) + " of layer " + std::to_string(cut.back().layer)});
  }
  EXPECT_THROW((void)model.trace(batch.inputs, {.cut = {{0, 2}}}), OptionError);
}

/// Weights, and what heads write, from the trace's own scores and values and the model's parameters.
void check_numbers(AttentionLM& model, const lm::Trace& trace, bool causal, const lm::HeadSet& cut) {
  for (std::size_t n = 0; n < trace.layers.size(); ++n) {
    const lm::LayerTrace& layer = trace.layers[n];
    const View<const float, 4> q = layer.q, k = layer.k, v = layer.v, scores = layer.scores, weights = layer.weights;
    const View<const float, 3> writes = layer.writes;
    const View<float, 2> output = output_of(model, static_cast<Index>(n));
    const Index length = q.size(2), depth = q.size(3), group = q.size(1) / k.size(1);
    for (Index b = 0; b < q.size(0); ++b) {
      for (Index h = 0; h < q.size(1); ++h) {
        for (Index i = 0; i < length; ++i) {
          std::vector<double> attended(at(depth));
          double sum = 0, norm = 0;
          for (Index j = 0; j < (causal ? i + 1 : length); ++j) sum += std::exp(wide(scores(b, h, i, j)));
          for (Index j = 0; j < length; ++j) {
            double dot = 0;
            for (Index d = 0; d < depth; ++d) {
              dot += wide(q(b, h, i, d)) * wide(k(b, h / group, j, d));
              attended[at(d)] += wide(weights(b, h, i, j)) * wide(v(b, h / group, j, d));
            }
            const bool hidden = causal && j > i;
            if (hidden)
              ASSERT_EQ(scores(b, h, i, j), -std::numeric_limits<float>::infinity());
            else
              ASSERT_NEAR(wide(scores(b, h, i, j)), dot / std::sqrt(wide(depth)), 1e-5);
            ASSERT_NEAR(wide(weights(b, h, i, j)), hidden ? 0 : std::exp(wide(scores(b, h, i, j))) / sum, 1e-5);
          }
          for (Index e = 0; e < output.size(0); ++e) {
            double written = 0;
            for (Index d = 0; d < depth; ++d) written += wide(output(e, h * depth + d)) * attended[at(d)];
            norm += written * written;
          }
          const bool gone = std::ranges::find(cut, lm::HeadIndex{static_cast<Index>(n), h}) != cut.end();
          ASSERT_NEAR(wide(writes(b, h, i)), gone ? 0 : std::sqrt(norm), 1e-5);
        }
      }
    }
  }
}

TEST(Trace, ScoresWeightsAndWritesAreTheFormulas) {
  for (const AttentionLMConfig& config : configs()) {
    AttentionLM model(config, 3);
    const lm::Batch batch = batch_of(config);
    for (const lm::HeadSet& cut : {lm::HeadSet{}, {{0, 1}}}) {
      const lm::Trace trace = model.trace(batch.inputs, {.cut = cut});
      check_numbers(model, trace, config.causal, cut);
      EXPECT_TRUE(test::same_bits(trace.logits, model.logits(batch.inputs, Context::default_context(), cut)));
      const auto weights = model.attention_weights(batch.inputs, Context::default_context(), cut);
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_TRUE(test::same_bits(weights[i], trace.layers[i].weights));
    }
    check_numbers(model, model.trace(batch.inputs, {.causal = !config.causal}), !config.causal, {});
  }
}

/// The chain from the gradients of the weights to those of W_q: ds = w (dw - sum_j w dw), dq = scale ds k,
/// dW_q = dq^T h. Of one plain layer, whose h is tok + pos.
TEST(Trace, GradientsOfWeightsGiveThoseOfTheProjection) {
  const AttentionLMConfig config = configs().front();
  AttentionLM model(config, 3);
  const lm::Batch batch = batch_of(config, 8);
  for (const lm::HeadSet& cut : {lm::HeadSet{}, {{0, 1}}}) {
    Context context({.bits = cut.empty() ? Bits::kInvariant : Bits::kFast});  // the head apart, and folded
    AttentionLM::Activations activations;
    model.forward(batch.inputs, activations, 0, context, cut);
    const double loss = model.loss(batch.targets, activations, context);
    model.backward(activations, context);
    const std::vector<float> before = test::gradients_of(model);
    const lm::Trace trace = model.trace(batch.inputs, {.cut = cut, .targets = batch.targets}, context);
    EXPECT_EQ(trace.loss, loss);
    EXPECT_EQ(test::gradients_of(model), before) << "of a const model";
    const lm::LayerTrace& layer = trace.layers[0];
    const View<const float, 4> k = layer.k, weights = layer.weights, gradients = layer.gradients;
    const Index width = config.embed_dim, depth = k.size(3), group = config.num_heads / config.num_kv_heads;
    const nn::Parameter tok = parameter_of(model, "tok.weight"), pos = parameter_of(model, "pos.weight"),
                        query = parameter_of(model, "attn.W_q.weight");
    std::vector<double> expected(query.value.size());
    for (Index b = 0; b < k.size(0); ++b) {
      for (Index i = 0; i < k.size(2); ++i) {
        for (Index h = 0; h < config.num_heads; ++h) {
          double mean = 0;
          for (Index j = 0; j < k.size(2); ++j) mean += wide(weights(b, h, i, j)) * wide(gradients(b, h, i, j));
          for (Index d = 0; d < depth; ++d) {
            double dq = 0;
            for (Index j = 0; j <= i; ++j)
              dq += wide(weights(b, h, i, j)) * (wide(gradients(b, h, i, j)) - mean) * wide(k(b, h / group, j, d)) /
                    std::sqrt(wide(depth));
            for (Index e = 0; e < width; ++e) {
              const Index id = batch.inputs.data()[b * config.context + i];
              expected[at((h * depth + d) * width + e)] +=
                  dq * wide(tok.value[at(id * width + e)] + pos.value[at(i * width + e)]);
            }
          }
          EXPECT_TRUE(cut.empty() || h != 1 || mean == 0) << "of a head that is cut";
          for (Index j = i + 1; j < k.size(2); ++j) EXPECT_EQ(gradients(b, h, i, j), 0) << "hidden";
        }
      }
    }
    double largest = 0;
    for (const double one : expected) largest = std::max(largest, std::abs(one));
    EXPECT_GT(largest, 1e-3);
    for (std::size_t n = 0; n < expected.size(); ++n)
      ASSERT_NEAR(wide(query.gradient[n]), expected[n], 1e-5 * largest) << n;
  }
}

TEST(Trace, WithoutScaleAndPositions) {
  for (const AttentionLMConfig& config : configs()) {
    AttentionLM model(config, 3);
    const lm::Batch batch = batch_of(config);
    const auto depth = static_cast<float>(config.embed_dim / config.num_heads);
    const lm::Trace as_it_is = model.trace(batch.inputs), unscaled = model.trace(batch.inputs, {.scale = false});
    const std::span<const float> scores = as_it_is.layers[0].scores.span(), raw = unscaled.layers[0].scores.span();
    for (std::size_t n = 0; n < raw.size(); ++n)
      if (std::isfinite(raw[n])) {
        ASSERT_NEAR(raw[n], scores[n] * std::sqrt(depth), 1e-5);
      }
    EXPECT_FALSE(test::same_bits(as_it_is.logits, unscaled.logits));

    // Without positions equal characters have equal scores anywhere.
    const std::vector<Index> same{4, 2, 4, 2};
    const lm::Trace trace = model.trace(View<const Index, 2>(same.data(), {1, 4}), {.positions = false});
    const View<const float, 4> found = trace.layers[0].scores;
    for (Index i = 0; i < 2; ++i)
      for (Index j = 0; j <= i; ++j) EXPECT_NEAR(found(0, 0, i, j), found(0, 0, i + 2, j), 1e-6);
    if (config.positions == lm::PositionKind::kRotary) continue;
    const nn::Parameter pos = parameter_of(model, config.blocks ? "transformer.wpe.weight" : "pos.weight");
    std::ranges::fill(pos.value, 0.0F);
    EXPECT_LT(test::distance<float>(
                  model.trace(batch.inputs, {.positions = false}).logits.span(), model.logits(batch.inputs).span()),
        2e-6);
  }
}

TEST(Trace, IsWithoutDropout) {
  AttentionLMConfig config = test::blocks_config();
  config.dropout = 0.5;
  AttentionLM model(config, 3);
  const lm::Batch batch = batch_of(config);
  const lm::Trace expected = model.trace(batch.inputs, {.targets = batch.targets});
  model.train();
  const lm::Trace found = model.trace(batch.inputs, {.targets = batch.targets});
  EXPECT_TRUE(test::same_bits(found.layers[1].weights, expected.layers[1].weights));
  EXPECT_TRUE(test::same_bits(found.layers[1].gradients, expected.layers[1].gradients));
  EXPECT_TRUE(test::same_bits(model.attention_weights(batch.inputs)[1], expected.layers[1].weights));
}

}  // namespace
}  // namespace qkv
