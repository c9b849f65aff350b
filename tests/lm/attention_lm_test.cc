// AttentionLM: parameters and their names, gradients against finite differences, bit-identical for any number of
// threads.
#include "qkv/lm/attention_lm.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "lm/lm_test_support.h"
#include "nn/nn_support.h"

namespace qkv {
namespace {

using lm::AttentionLM;
using lm::AttentionLMConfig;

TEST(AttentionLM, FiveThousandAndSixtyThreeParameters) {
  AttentionLM model(test::default_config());
  EXPECT_EQ(model.parameter_count(), 5063);
  std::vector<std::string> names;
  for (const nn::Parameter& p : model.parameters()) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tok.weight", "pos.weight", "attn.W_q.weight", "attn.W_k.weight",
                       "attn.W_v.weight", "attn.W_o.weight", "head.weight", "head.bias"}));
}

TEST(AttentionLM, BlocksHaveNanoGptsNames) {
  AttentionLM model(test::blocks_config());
  const StateDict state = model.state_dict();
  for (const char* name : {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
           "transformer.h.0.ln_1.bias", "transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_attn.bias",
           "transformer.h.1.attn.c_proj.weight", "transformer.h.1.ln_2.bias", "transformer.h.1.mlp.c_fc.weight",
           "transformer.h.1.mlp.c_proj.bias", "transformer.ln_f.weight", "lm_head.weight"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  EXPECT_EQ(state.at("transformer.h.0.mlp.c_fc.weight").sizes, (std::vector<Index>{64, 16}));
}

TEST(AttentionLM, InitialisationIsPyTorchs) {
  AttentionLM model({.vocab_size = 300, .context = 64, .embed_dim = 64}, 1);
  for (const nn::Parameter& p : model.parameters()) {
    const auto [n, mean, square, largest] = test::moments_of(p.value);
    const bool embedding = p.name == "tok.weight" || p.name == "pos.weight";
    const double variance = embedding ? 1 : 1.0 / 64 / 3;  // uniform +-a: a^2 / 3
    // Six standard errors of a mean, and of a variance whose fourth moment is at most 3 variance^2.
    EXPECT_NEAR(mean, 0, 6 * std::sqrt(variance / n)) << p.name;
    EXPECT_NEAR(square, variance, 6 * variance * std::sqrt(2 / n)) << p.name;
    if (!embedding) {
      EXPECT_LE(largest, 1.0 / 8) << p.name;
    }
  }
}

TEST(AttentionLM, ImpossibleConfigurations) {
  const auto make = [](AttentionLMConfig c) { return [c] { AttentionLM model(c); }; };
  test::expect_error<OptionError>(make({.vocab_size = 0}), {"at least 1"});
  test::expect_error<OptionError>(make({.vocab_size = 7, .num_heads = 3}), {"num_heads must divide", "3 heads", "32"});
  test::expect_error<OptionError>(
      make({.vocab_size = 7, .num_heads = 4, .num_kv_heads = 3}), {"num_kv_heads must divide", "3 for 4 heads"});
  test::expect_error<OptionError>(
      make({.vocab_size = 7, .embed_dim = 12, .num_heads = 4, .positions = lm::PositionKind::kRotary}),
      {"even head width", "got 3"});
  test::expect_error<OptionError>(make({.vocab_size = 7, .embed_dim = Index{1} << 40}), {"at most"});
  test::expect_error<OptionError>(make({.vocab_size = 7, .dropout = 1.5}), {"dropout", "1.5"});
}

lm::Batch default_batch(Index context = 16, Index vocab = 7) {
  lm::Batch batch;
  lm::BatchSource::previous(vocab, {5, context}, 2).fill(0, batch);
  return batch;
}

TEST(AttentionLM, GroupedHeadsShareRowsAndRotaryHasNoTable) {
  const StateDict plain = AttentionLM(test::grouped_rotary_config(false)).state_dict();
  EXPECT_FALSE(plain.contains("pos.weight"));
  EXPECT_EQ(plain.at("attn.0.W_q.weight").sizes, (std::vector<Index>{24, 24}));
  EXPECT_EQ(plain.at("attn.0.W_k.weight").sizes, (std::vector<Index>{12, 24}));
  EXPECT_EQ(plain.at("attn.1.W_v.weight").sizes, (std::vector<Index>{12, 24}));
  const StateDict blocks = AttentionLM(test::grouped_rotary_config(true)).state_dict();
  EXPECT_FALSE(blocks.contains("transformer.wpe.weight"));
  EXPECT_EQ(blocks.at("transformer.h.0.attn.c_attn.weight").sizes, (std::vector<Index>{48, 24}));
}

/// Grouped heads are heads with equal keys and values: a model with one key/value head per query head gives the same
/// logits.
TEST(AttentionLM, GroupedHeadsAreHeadsWithTheSameKeysAndValues) {
  lm::AttentionLMConfig config = test::grouped_rotary_config(false);
  AttentionLM grouped(config, 4);
  config.num_kv_heads = config.num_heads;
  AttentionLM whole(config);
  whole.load_state_dict(test::with_repeated_heads(grouped.state_dict(), "W_k.weight", "W_v.weight"));
  const lm::Batch batch = default_batch(config.context, config.vocab_size);
  const Tensor<float> a = grouped.logits(batch.inputs), b = whole.logits(batch.inputs);
  for (Index i = 0; i < a.count(); ++i) {
    ASSERT_NEAR(a.data()[i], b.data()[i], 1e-5F * (1 + std::abs(b.data()[i]))) << i;
  }
}

/// Rotary positions encode distances, not positions: the same tokens at the same distance have the same scores
/// anywhere, so their weights have the same ratio.
TEST(AttentionLM, RotaryScoresDependOnTheDistance) {
  const std::vector<Index> ids{3, 1, 4, 3, 1, 4};
  for (const auto kind : {lm::PositionKind::kRotary, lm::PositionKind::kLearned}) {
    lm::AttentionLMConfig config = test::grouped_rotary_config(false);
    config.positions = kind;
    const auto layers = AttentionLM(config, 6).attention_weights(View<const Index, 2>(ids.data(), {1, 6}));
    const View<const float, 4> weights = layers[0];
    const auto ratio = [&](Index i, Index a, Index b) {
      return static_cast<double>(weights(0, 3, i, a)) / static_cast<double>(weights(0, 3, i, b));
    };
    const bool rotary = kind == lm::PositionKind::kRotary;
    EXPECT_EQ(std::abs(ratio(2, 0, 1) - ratio(5, 3, 4)) < 1e-5, rotary);
    EXPECT_EQ(std::abs(ratio(1, 0, 1) - ratio(4, 3, 4)) < 1e-5, rotary);
    EXPECT_GT(std::abs(ratio(5, 0, 4) - ratio(5, 3, 4)), 1e-4) << "the same tokens at another distance";
  }
}

TEST(AttentionLM, BadIdsAndShapes) {
  AttentionLM model(test::default_config());
  AttentionLM::Activations activations;
  test::expect_error<OptionError>([&] { model.backward(activations); }, {"this model's forward and loss", "0 layers"});
  lm::Batch batch = default_batch();
  batch.inputs.data()[17] = 7;
  test::expect_error<OptionError>([&] { model.forward(batch.inputs, activations); }, {"[0, 7)", "got 7", "[1, 1]"});
  const Tensor<Index> longer({1, 17});
  test::expect_error<ShapeError>([&] { model.forward(longer, activations); }, {"[1, 17]", "context 16"});
  batch.inputs.data()[17] = 0;
  model.forward(batch.inputs, activations);
  test::expect_error<ShapeError>([&] { model.loss(longer, activations); }, {"[5, 16]", "[1, 17]"});
  model.loss(batch.targets, activations);
  model.backward(activations);
  model.forward(batch.inputs, activations);  // the loss is of the forward before
  test::expect_error<OptionError>([&] { model.backward(activations); }, {"this model's forward and loss"});
  model.loss(batch.targets, activations);
  batch.inputs.data()[17] = 7;
  EXPECT_THROW(model.forward(batch.inputs, activations), OptionError);
  test::expect_error<OptionError>([&] { model.backward(activations); }, {"this model's forward and loss"});
  test::expect_error<OptionError>([&] { model.loss(batch.targets, activations); }, {"this model's last forward"});
  std::fill_n(batch.targets.data(), batch.targets.count(), lm::kNoTarget);
  batch.inputs.data()[17] = 0;
  model.forward(batch.inputs, activations);
  test::expect_error<OptionError>([&] { model.loss(batch.targets, activations); }, {"target"});
}

/// The loss along a random direction: (loss(x + h d) - loss(x - h d)) / 2h against gradient . d.
void check_direction(AttentionLMConfig config, bool masked, const lm::HeadSet& cut = {}) {
  AttentionLM model(config, 3);
  model.train(config.dropout > 0);
  lm::Batch batch = default_batch(config.context, config.vocab_size);
  if (masked) {
    for (Index at = 0; at < batch.targets.count(); at += 2) batch.targets.data()[at] = lm::kNoTarget;
  }
  AttentionLM::Activations activations;
  const auto loss = [&] {
    model.forward(batch.inputs, activations, 11, Context::default_context(), cut);
    return model.loss(batch.targets, activations);
  };
  loss();
  model.backward(activations);

  const std::vector<float> gradient = test::gradients_of(model), start = test::values_of(model);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Random random(seed);
    std::vector<double> direction(gradient.size());
    double norm = 0;
    for (double& d : direction) {
      d = random.normal();
      norm += d * d;
    }
    // Half random, half along the gradient, so that the expected derivative is never near 0.
    double length = 0, slope = 0;
    for (const float g : gradient) length += static_cast<double>(g) * static_cast<double>(g);
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = direction[i] / std::sqrt(norm) + static_cast<double>(gradient[i]) / std::sqrt(length);
      slope += direction[i] * static_cast<double>(gradient[i]);
    }
    const auto loss_at = [&](double h) {
      std::size_t at = 0;
      for (const nn::Parameter& p : model.parameters()) {
        for (float& v : p.value) {
          v = static_cast<float>(static_cast<double>(start[at]) + h * direction[at]);
          ++at;
        }
      }
      return loss();
    };
    // Richardson's two central differences: error h^4; f32 losses are exact to about 1e-6, so noise of 1e-6 / h.
    constexpr double kStep = 0.04;
    const auto difference = [&](double h) { return (loss_at(h) - loss_at(-h)) / (2 * h); };
    const double found = (4 * difference(kStep / 2) - difference(kStep)) / 3;
    EXPECT_NEAR(found, slope, 2e-3 * std::abs(slope)) << "seed " << seed;
  }
}

TEST(AttentionLM, GradientsAreTheSlopesOfTheLoss) {
  AttentionLMConfig rotary = test::default_config(), open = rotary, dropout = test::blocks_config();
  rotary.positions = lm::PositionKind::kRotary;
  dropout.dropout = 0.25;
  open.causal = false;
  for (const auto& [name, config] :
      std::initializer_list<std::pair<const char*, AttentionLMConfig>>{{"plain", test::default_config()},
          {"heads and layers", {.vocab_size = 7, .context = 9, .embed_dim = 24, .num_heads = 3, .num_layers = 2}},
          {"blocks", test::blocks_config()},
          {"grouped heads",
              {.vocab_size = 7, .context = 9, .embed_dim = 24, .num_heads = 4, .num_kv_heads = 2, .num_layers = 2}},
          {"tables of grouped heads", {.vocab_size = 7, .embed_dim = 32, .num_heads = 4, .num_kv_heads = 1}},
          {"rotary", rotary}, {"grouped rotary layers", test::grouped_rotary_config(false)},
          {"grouped rotary blocks", test::grouped_rotary_config(true)}, {"dropout", dropout}}) {
    SCOPED_TRACE(name);
    check_direction(config, false);
    if (config.num_heads > 1) check_direction(config, false, {{config.num_layers - 1, 1}, {0, config.num_heads - 1}});
  }
  check_direction(open, true);
}

/// A plain model of one layer multiplies its output projection and its head first (lm/folded_head.h), where bits need
/// not be invariant: the same function and gradients in another order of sums.
TEST(AttentionLM, FoldedHeadIsTheLayersOneByOne) {
  for (const AttentionLMConfig& config : {test::default_config(),
           AttentionLMConfig{.vocab_size = 7, .embed_dim = 32, .num_heads = 4, .num_kv_heads = 1}}) {
    const lm::Batch batch = default_batch();
    Context fast({.threads = 2}), one_by_one({.threads = 2, .bits = Bits::kInvariant});
    const auto run = [&](Context& context) {
      AttentionLM model(config, 3);
      AttentionLM::Activations activations;
      model.forward(batch.inputs, activations, 0, context);
      const View<const float, 3> logits = activations.logits();
      std::vector<float> all(logits.data(), logits.data() + logits.count());
      model.loss(batch.targets, activations, context);
      model.backward(activations, context);
      for (const nn::Parameter& parameter : model.parameters()) {
        all.insert(all.end(), parameter.gradient.begin(), parameter.gradient.end());
      }
      return all;
    };
    const std::vector<float> folded = run(fast), plain = run(one_by_one);
    ASSERT_EQ(folded.size(), plain.size());
    EXPECT_NE(folded, plain);
    for (std::size_t n = 0; n < plain.size(); ++n)
      ASSERT_NEAR(folded[n], plain[n], 2e-6 * (1 + std::abs(plain[n]))) << n;
  }
}

TEST(AttentionLM, DropoutActsInTrainingOnlyAndFollowsItsSeed) {
  AttentionLMConfig config = test::default_config();
  config.dropout = 0.5;
  AttentionLM model(config, 1);
  const lm::Batch batch = default_batch();
  const auto logits = [&](std::uint64_t seed) {
    AttentionLM::Activations activations;
    model.forward(batch.inputs, activations, seed);
    const View<const float, 3> view = activations.logits();
    return std::vector<float>(view.data(), view.data() + view.count());
  };
  EXPECT_TRUE(test::same_bits(logits(1), logits(2)));
  model.train();
  EXPECT_TRUE(test::same_bits(logits(1), logits(1)));
  EXPECT_FALSE(test::same_bits(logits(1), logits(2)));
}

TEST(AttentionLM, DropoutOfEverythingLeavesTheResidualAlone) {
  AttentionLMConfig config = test::blocks_config();
  config.dropout = 1;
  AttentionLM model(config, 1), other = model.clone();
  for (const nn::Parameter& p : other.parameters()) {
    if (!p.name.starts_with("transformer.h.")) continue;
    for (float& v : p.value) v += 0.25F;
  }
  const lm::Batch batch = default_batch(config.context, config.vocab_size);
  for (const bool training : {true, false}) {
    model.train(training);
    other.train(training);
    const Tensor<float> a = model.logits(batch.inputs), b = other.logits(batch.inputs);
    EXPECT_EQ(std::ranges::equal(a.span(), b.span()), training);
  }
}

TEST(AttentionLM, CausalMeansThatTheFutureChangesNothing) {
  for (const bool causal : {true, false}) {
    AttentionLMConfig config = test::default_config();
    AttentionLM model(config, 5);
    model.set_causal(causal);
    lm::Batch batch = default_batch();
    const Tensor<float> before = model.logits(batch.inputs);
    for (Index b = 0; b < 5; ++b) batch.inputs.data()[b * 16 + 15] = (batch.inputs.data()[b * 16 + 15] + 1) % 7;
    const Tensor<float> after = model.logits(batch.inputs);
    const bool same = std::memcmp(before.data(), after.data(), 15 * 7 * sizeof(float)) == 0;
    EXPECT_EQ(same, causal);
  }
}

/// Of one layer with one head: q = (tok + pos) W_q^T, and so k and v; scores and weights are held by trace_test.cc.
TEST(AttentionLM, QueriesKeysAndValuesAreThoseOfTheFormula) {
  AttentionLM model(test::default_config(), 2);
  const lm::Batch batch = default_batch();
  const Index length = batch.inputs.size(1), width = model.config().embed_dim;
  const lm::Trace trace = model.trace(batch.inputs);
  const auto state = model.state_dict();
  const auto at = [&](const char* name, Index row, Index column) {
    return static_cast<double>(reinterpret_cast<const float*>(state.at(name).bytes.data())[row * width + column]);
  };
  for (const auto& [name, found] : {std::pair{"attn.W_q.weight", &trace.layers[0].q},
           {"attn.W_k.weight", &trace.layers[0].k}, {"attn.W_v.weight", &trace.layers[0].v}}) {
    for (Index i = 0; i < length; ++i) {
      for (Index out = 0; out < width; ++out) {
        double sum = 0;
        for (Index e = 0; e < width; ++e)
          sum += (at("tok.weight", batch.inputs.data()[i], e) + at("pos.weight", i, e)) * at(name, out, e);
        EXPECT_NEAR(static_cast<double>(found->data()[i * width + out]), sum, 1e-5) << name;
      }
    }
  }
}

TEST(AttentionLM, CloneAndStateDict) {
  AttentionLM model(test::blocks_config(), 8), other(test::blocks_config(), 9);
  AttentionLM copy = model.clone();
  EXPECT_TRUE(test::same_bits(test::values_of(copy), test::values_of(model)));
  EXPECT_FALSE(test::same_bits(test::values_of(other), test::values_of(model)));
  other.load_state_dict(model.state_dict());
  EXPECT_TRUE(test::same_bits(test::values_of(other), test::values_of(model)));
  test::expect_error<OptionError>(
      [&] { other.load_state_dict(AttentionLM(test::default_config()).state_dict()); }, {"tok.weight"});
}

TEST(AttentionLM, ActivationsOfAnotherModelLeaveNothing) {
  AttentionLMConfig plain = test::blocks_config();
  plain.blocks = false;
  const AttentionLM first(test::blocks_config(), 1), second(plain, 2);
  Tensor<Index> ids({3, 8});
  for (Index n = 0; n < ids.count(); ++n) ids.data()[n] = n % 7;
  AttentionLM::Activations reused, fresh;
  first.forward(ids, reused);
  first.loss(ids, reused);
  AttentionLM third(plain, 3);
  test::expect_error<OptionError>([&] { third.backward(reused); }, {"this model's forward and loss"});
  test::expect_error<OptionError>([&] { second.loss(ids, reused); }, {"this model's last forward"});
  second.forward(ids, reused);
  second.forward(ids, fresh);
  const auto logits = [&](const AttentionLM::Activations& a) { return std::span(a.logits().data(), 3 * 8 * 7); };
  EXPECT_TRUE(test::same_bits(logits(reused), logits(fresh)));
}

}  // namespace
}  // namespace qkv
