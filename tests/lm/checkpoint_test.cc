// Checkpoints: what was saved is loaded bit for bit; errors name what is broken.
#include "lm/lm_test_support.h"
#include "qkv/io/safetensors.h"

namespace qkv {
namespace {

using lm::AttentionLM;

StateDict saved_state(const lm::AttentionLMConfig& config = test::default_config(), const std::string& task = "text") {
  return lm::checkpoint_to_state(AttentionLM(config, 4), test::default_tokenizer(), task, 12);
}

/// Reads a file in whose metadata `name` is `value`; null: missing.
auto with(const char* name, const char* value, const lm::AttentionLMConfig& config = test::default_config()) {
  return [=] {
    StateDict state = saved_state(config);
    if (value == nullptr) {
      state.metadata.erase(name);
    } else {
      state.metadata[name] = value;
    }
    lm::checkpoint_from_state(state);
  };
}

TEST(Checkpoint, FileRoundTrip) {
  lm::AttentionLMConfig config = test::blocks_config();
  config.dropout = 0.1;
  AttentionLM model(config, 4);
  lm::Checkpoint back = lm::checkpoint_from_state(io::parse_safetensors(
      io::write_safetensors(lm::checkpoint_to_state(model, test::default_tokenizer(), "previous", 77))));
  EXPECT_TRUE(test::same_bits(test::values_of(back.model), test::values_of(model)));
  EXPECT_EQ(back.tokenizer.characters(), test::default_tokenizer().characters());
  EXPECT_EQ(back.task, "previous");
  EXPECT_EQ(back.step, 77);
  EXPECT_FALSE(back.adam.has_value());
  EXPECT_EQ(back.model.config().num_layers, config.num_layers);
  EXPECT_EQ(back.model.config().context, config.context);
  EXPECT_NEAR(back.model.config().dropout, config.dropout, 0x1p-17);
  EXPECT_TRUE(back.model.config().blocks);
}

TEST(Checkpoint, GroupedHeadsAndRotaryPositionsComeBack) {
  for (const bool blocks : {false, true}) {
    AttentionLM model(test::grouped_rotary_config(blocks), 4);
    lm::Checkpoint back =
        lm::checkpoint_from_state(lm::checkpoint_to_state(model, test::default_tokenizer(), "text", 1));
    EXPECT_EQ(back.model.config().num_kv_heads, 2);
    EXPECT_EQ(back.model.config().positions, lm::PositionKind::kRotary);
    EXPECT_TRUE(test::same_bits(test::values_of(back.model), test::values_of(model)));
  }
  // A file older than both has neither entry.
  StateDict older = saved_state();
  older.metadata.erase("lm.num_kv_heads");
  older.metadata.erase("lm.rotary");
  const lm::Checkpoint back = lm::checkpoint_from_state(older);
  EXPECT_EQ(back.model.config().num_kv_heads, test::default_config().num_heads);
  EXPECT_EQ(back.model.config().positions, lm::PositionKind::kLearned);
}

TEST(Checkpoint, RotaryOptionsComeBack) {
  lm::AttentionLMConfig config = test::grouped_rotary_config(false);
  AttentionLM usual(config, 4);
  const std::vector<RotaryOptions> all = {{.rotary_dim = 2, .base = 123456.7, .layout = RotaryLayout::kInterleaved},
      {.scaling = RotaryScaling::kYarn, .factor = 3.3, .original_context = 5, .beta_fast = 4, .beta_slow = 0.1},
      {.scaling = RotaryScaling::kYarn, .factor = 2, .original_context = 5, .attention_factor = 1.1},
      {.base = 0.1,
          .scaling = RotaryScaling::kLlama3,
          .factor = 8,
          .original_context = 6,
          .low_frequency = 0.3,
          .high_frequency = 2.5}};
  Tensor<Index> ids({2, config.context});
  for (Index n = 0; n < ids.count(); ++n) ids.data()[n] = n * n % config.vocab_size;
  const auto logits_of = [&ids](const AttentionLM& model) {
    const Tensor<float> logits = model.logits(ids);
    return std::vector<float>(logits.span().begin(), logits.span().end());
  };
  for (const RotaryOptions& rotary : all) {
    config.rotary = rotary;
    AttentionLM model(config, 4);
    const lm::Checkpoint back =
        lm::checkpoint_from_state(lm::checkpoint_to_state(model, test::default_tokenizer(), "text", 1));
    EXPECT_EQ(back.model.config().rotary, rotary);
    EXPECT_TRUE(test::same_bits(logits_of(back.model), logits_of(model)));
    EXPECT_FALSE(test::same_bits(logits_of(usual), logits_of(model))) << "the options reach the layers";
  }
  const lm::AttentionLMConfig grouped = test::grouped_rotary_config(false);
  EXPECT_NO_THROW(with("lm.rotary_base", "500000", grouped)());
  test::expect_error<OptionError>(with("lm.rotary_base", "nan", grouped), {"base", "nan"});
  test::expect_error<OptionError>(with("lm.rotary_base", "1e4x", grouped), {"lm.rotary_base", "1e4x"});
  test::expect_error<OptionError>(with("lm.rotary_scaling", "5", grouped), {"lm.rotary_scaling", "at most 4", "5"});
  test::expect_error<OptionError>(with("lm.rotary_dim", "3", grouped), {"rotary_dim", "3"});
}

TEST(Checkpoint, MissingOrWrongMetadata) {
  EXPECT_NO_THROW(with("lm.step", "12")());
  for (const char* name : {"lm.step", "lm.task", "lm.vocab_size", "lm.context", "lm.causal", "tokenizer.characters"}) {
    test::expect_error<OptionError>(with(name, nullptr), {name, "got none"});
  }
  test::expect_error<OptionError>(with("lm.step", "many"), {"lm.step", "many"});
  test::expect_error<OptionError>(with("lm.context", "-3"), {"lm.context", "-3"});
  test::expect_error<OptionError>(with("lm.context", "99999999999999999999"), {"lm.context"});
  test::expect_error<OptionError>(with("lm.causal", "2"), {"lm.causal", "0 or 1"});
  test::expect_error<OptionError>(with("lm.num_kv_heads", "2"), {"num_kv_heads must divide", "2 for 1"});
  test::expect_error<OptionError>(with("lm.rotary", "3"), {"lm.rotary", "0 or 1"});
  test::expect_error<OptionError>(
      with("lm.task", "sums"), {"lm.task must be text, previous, same, induction or masked", "sums"});
  test::expect_error<OptionError>(with("lm.task", "masked"), {"symbols 8", "got 7"});
  test::expect_error<OptionError>(with("tokenizer.characters", "ab"), {"symbols 2", "got 7"});
  test::expect_error<FormatError>(with("tokenizer.characters", "a\xFF"), {"UTF-8", "0xFF"});
  test::expect_error<OptionError>(with("lm.num_heads", "5"), {"num_heads must divide"});
  test::expect_error<OptionError>(with("lm.dropout_65536ths", "65537"), {"dropout"});
}

TEST(Checkpoint, SizesThatTheFileDoesNotHold) {
  test::expect_error<ShapeError>(with("lm.context", "1000000"), {"pos.weight", "[1000000, 32]", "[16, 32]"});
  test::expect_error<ShapeError>(with("lm.embed_dim", "1048576"), {"tok.weight", "[7, 1048576]", "[7, 32]"});
  test::expect_error<ShapeError>(with("lm.num_layers", "1000000"), {"1000000 layers", "elements"});
  lm::AttentionLMConfig narrow{.vocab_size = 7, .context = 16, .embed_dim = 1, .num_heads = 1};
  for (const bool blocks : {false, true}) {
    narrow.blocks = blocks;
    StateDict state = saved_state(narrow);
    state.metadata["lm.num_layers"] = "1000000";
    state.add("wide", any_tensor(Tensor<float>({4'000'000})));
    test::expect_error<OptionError>([&] { lm::checkpoint_from_state(state); },
        {"each of the 1000000 layers",
            blocks ? "got no transformer.h.1.attn.c_attn.weight" : "got no attn.0.W_q.weight"});
  }
}

TEST(Checkpoint, NumbersThatAreNotFinite) {
  AttentionLM model(test::default_config(), 4);
  model.parameters().back().value[2] = std::numeric_limits<float>::infinity();
  const StateDict state = lm::checkpoint_to_state(model, test::default_tokenizer(), "text", 12);
  test::expect_error<OptionError>([&] { lm::checkpoint_from_state(state); }, {"head.bias", "must be finite"});
}

TEST(Checkpoint, ALongListOfNamesIsCut) {
  lm::AttentionLMConfig config = test::default_config();
  config.num_layers = 30;
  StateDict state = saved_state(config);
  state.add("extra.weight", any_tensor(Tensor<float>({8})));
  test::expect_error<OptionError>([&] { lm::checkpoint_from_state(state); }, {"extra.weight", " and ", " more"});
}

TEST(Checkpoint, ParametersMissingOrTooMany) {
  StateDict without, with_more = saved_state(), wrong_shape;
  const StateDict whole = saved_state();
  without.metadata = wrong_shape.metadata = whole.metadata;
  for (const StateDict::Entry& entry : whole.entries()) {
    if (entry.name != "head.bias") {
      without.add(entry.name, entry.tensor.clone());
      wrong_shape.add(entry.name, entry.tensor.clone());
    }
  }
  wrong_shape.add("head.bias", any_tensor(Tensor<float>({8})));
  with_more.add("extra.weight", any_tensor(Tensor<float>({8})));
  test::expect_error<OptionError>([&] { lm::checkpoint_from_state(without); }, {"head.bias"});
  test::expect_error<OptionError>([&] { lm::checkpoint_from_state(with_more); }, {"extra.weight"});
  test::expect_error<ShapeError>([&] { lm::checkpoint_from_state(wrong_shape); }, {"head.bias", "[8]", "[7]"});
}

TEST(Checkpoint, OptimizerStateThatDoesNotFit) {
  StateDict state = saved_state();
  state.metadata["lm.adam_step"] = "3";
  test::expect_error<OptionError>([&] { lm::checkpoint_from_state(state); }, {"adam.mean"});
  state.add("adam.mean", any_tensor(Tensor<float>({5063})));
  state.add("adam.square", any_tensor(Tensor<float>({5062})));
  test::expect_error<ShapeError>([&] { lm::checkpoint_from_state(state); }, {"5063", "5062"});
}

}  // namespace
}  // namespace qkv
