#include "train/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/escape.h"
#include "support/command.h"
#include "support/files.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

constexpr const char* kDefaultSample = "abababab";
constexpr std::size_t kSampleCharacters = 8;

RotaryOptions rotary_of(const std::string& text) {
  const RotaryChoice choice = parse_rotary(text);
  if (choice.positions.offset != 0) throw UsageError("--rope offset is not for training: windows begin at position 0");
  return choice.options;
}

/// A trained model settles what it is: what the caller says besides must agree.
void check_agrees(
    const TrainCommandOptions& options, const lm::Checkpoint& checkpoint, const lm::CharTokenizer& tokenizer) {
  const lm::AttentionLMConfig& config = checkpoint.model.config();
  const auto agree = [&](bool agrees, const std::string& what, const std::string& has) {
    if (agrees) return;
    throw UsageError(what + " does not fit --init " + escaped(options.init) + ": that model " + has +
                     ", which training does not change: leave the option out, or --init");
  };
  const auto same = [&](const std::string& option, std::optional<Index> said, Index has) {
    if (said) agree(*said == has, option + " " + std::to_string(*said), "has " + std::to_string(has));
  };
  same("--context", options.context, config.context);
  same("--dim", options.dim, config.embed_dim);
  same("--heads", options.heads, config.num_heads);
  same("--kv-heads", options.kv_heads, config.num_kv_heads);
  same("--layers", options.layers, config.num_layers);
  const bool rotary = config.positions == lm::PositionKind::kRotary;
  agree(options.positions.empty() || (options.positions == "rotary") == rotary, "--positions " + options.positions,
      std::string("has ") + (rotary ? "rotary" : "learned") + " positions");
  if (options.rope)
    agree(rotary && rotary_of(*options.rope) == config.rotary, "--rope " + escaped(*options.rope),
        rotary ? "has other rotary options" : "has learned positions");
  const bool blocks = options.blocks.value_or(config.blocks);
  agree(blocks == config.blocks, blocks ? "--blocks" : "--no-blocks", blocks ? "has none" : "has blocks");
  agree((options.task == "masked") == (checkpoint.task == "masked"), "--task " + options.task,
      "was trained with --task " + checkpoint.task);
  if (checkpoint.tokenizer.characters() != tokenizer.characters()) {
    throw UsageError("--init " + escaped(options.init) + ": the model must know the characters of the text, " +
                     one_line(tokenizer.describe()) + ": it knows " + one_line(checkpoint.tokenizer.describe()));
  }
}

/// The model that training goes on with; its dropout may change from now on.
lm::AttentionLM trained_model(
    const TrainCommandOptions& options, const StateDict& state, const lm::CharTokenizer& tokenizer) {
  lm::Checkpoint checkpoint = about_file("--init", options.init, [&] { return lm::checkpoint_from_state(state); });
  check_agrees(options, checkpoint, tokenizer);
  if (!options.dropout) return std::move(checkpoint.model);
  lm::AttentionLMConfig config = checkpoint.model.config();
  config.dropout = *options.dropout;
  lm::AttentionLM model(config);
  model.load_state_dict(checkpoint.model.state_dict());
  return model;
}

lm::AttentionLM make_model(
    const TrainCommandOptions& options, const lm::Task& task, const lm::CharTokenizer& tokenizer) {
  lm::AttentionLMConfig config = task.config;
  std::optional<StateDict> init;
  if (!options.init.empty()) {
    init = load_safetensors("--init", options.init);
    if (init->metadata.contains("lm.task")) return trained_model(options, *init, tokenizer);
  }
  config.vocab_size = task.vocab_size(tokenizer.vocab_size());
  config.context = options.context.value_or(config.context);
  config.embed_dim = options.dim.value_or(config.embed_dim);
  config.num_heads = options.heads.value_or(config.num_heads);
  config.num_kv_heads = options.kv_heads.value_or(config.num_heads);
  config.num_layers = options.layers.value_or(config.num_layers);
  if (!options.positions.empty())
    config.positions = options.positions == "rotary" ? lm::PositionKind::kRotary : lm::PositionKind::kLearned;
  config.blocks = options.blocks.value_or(config.blocks);
  if (options.rope) {
    if (config.positions != lm::PositionKind::kRotary) throw UsageError("--rope needs --positions rotary");
    config.rotary = rotary_of(*options.rope);
  }
  config.dropout = options.dropout.value_or(config.dropout);
  const Index heads = config.num_heads;
  if (config.embed_dim % heads != 0)
    throw UsageError(fmt::format("--heads must divide --dim: got {} heads for {}", heads, config.embed_dim));
  if (heads % config.num_kv_heads != 0)
    throw UsageError(fmt::format("--kv-heads must divide --heads: got {} for {}", config.num_kv_heads, heads));
  if (options.rope) about("--rope", [&] { static_cast<void>(Rotary(config.embed_dim / heads, config.rotary)); });
  lm::AttentionLM model(config, options.seed);
  if (init) about_file("--init", options.init, [&] { model.load_state_dict(*init); });
  return model;
}

/// The text drawn after training: the caller's, otherwise a row of the tasks whose characters have to repeat, otherwise
/// the article's sample where its characters are known, otherwise the first characters of the text.
std::string choose_sample(const TrainCommandOptions& options, const lm::CharTokenizer& tokenizer,
    const std::vector<Index>& ids, Index context, const lm::BatchSource& fresh) {
  std::string sample = options.sample;
  if (sample.empty()) {
    if (options.task == "same" || options.task == "induction") {
      lm::Batch batch;
      fresh.fill(0, batch);
      return tokenizer.decode(std::span(batch.inputs.data(), static_cast<std::size_t>(context)));
    }
    const auto& known = tokenizer.characters();
    const auto length = std::min<std::size_t>({kSampleCharacters, static_cast<std::size_t>(context), ids.size()});
    const bool usual = std::ranges::find(known, U'a') != known.end() && std::ranges::find(known, U'b') != known.end();
    if (usual) return std::string(kDefaultSample).substr(0, length);
    return tokenizer.decode(std::span(ids).first(length));
  }
  const auto length = about("--sample", [&] { return static_cast<Index>(tokenizer.encode(sample).size()); });
  if (length > context) {
    throw UsageError("--sample must be at most as long as the context, " + std::to_string(context) + ": got " +
                     std::to_string(length) + " characters");
  }
  return sample;
}

}  // namespace

void add_train_options(Options& add, TrainCommandOptions& options) {
  std::vector<std::string> names;
  for (const lm::Task& task : lm::tasks()) names.emplace_back(task.name);
  add.heading("What it learns");
  add("--text FILE", &options.text,
      "Training text, UTF-8 (default: a built-in pattern); previous, same and induction train on random characters of "
      "it");
  add("--task NAME", &options.task,
      "What it predicts; text: the next character; previous: the one before; same: where it was before; induction: the "
      "next of a string that repeats, with other defaults (docs/cli/train.md); masked: hidden ones",
      {.among = names});
  add("--init FILE", &options.init, "Initial weights, .safetensors");
  add("--batches FILE", &options.batches, "Batches to train on [steps, B, T + 1], .npy");
  add("--steps N", &options.steps, "Steps (default 800)");
  add("--seed N", &options.seed, "Seed of weights, batches, dropout and the continuation (default 0)");

  add.heading("What comes out");
  add("--out FILE", &options.out, "The trained model, .safetensors");
  add("--map FILE", &options.maps, "Draw the sample's attention: .png, .svg, .pdf or .html; may be repeated");
  add("--sample TEXT", &options.sample,
      "Text whose attention is drawn (default abababab; without a and b in the text its first 8 characters; same and "
      "induction: a fresh string)");
  add("--tokens N", &options.tokens,
      "Characters of the continuation of --task text and induction (default 72; 0: none)");
  add("--cut L:H,...", &options.cut,
      "Report the trained model also without heads, such as 0:1,1:0 (layer 0, head 1; layer 1, head 0)");
  add.json(options.json);

  add.heading("The model");
  add("--context N", &options.context, "Context length in characters (default 16)", {.least = 1});
  add("--dim N", &options.dim, "Embedding width (default 32)", {.least = 1});
  add("--heads N", &options.heads, "Heads of each layer (default 1)", {.least = 1});
  add("--kv-heads N", &options.kv_heads, "Heads of keys and values, shared (default: as many as --heads)",
      {.least = 1});
  add("--positions NAME", &options.positions, "learned: embeddings; rotary: q and k are rotated (default learned)",
      {.among = {"learned", "rotary"}});
  add("--rope KEY=VALUE,...", &options.rope,
      "Rotary options: base=500000,scaling=yarn,... (default: base 10000, whole heads)");
  add("--layers N", &options.layers, "Attention layers (default 1)", {.least = 1});
  add("--blocks,!--no-blocks", &options.blocks, "Residual blocks with LayerNorm and an MLP, as in GPT-2");
  add("--dropout P", &options.dropout, "Dropout while training (default 0)", {.most = 1});
  add("--batch N", &options.batch, "Batch size: windows per step (default 32)", {.least = 1});
  add("--lr X", &options.rate, "Learning rate of Adam (default 0.003)");
  add("--weight-decay X", &options.weight_decay, "Weight decay of AdamW (default 0: Adam)");
  add("--schedule NAME", &options.schedule, "Learning rate: constant or cosine (default constant)",
      {.among = {"constant", "cosine"}});
  add("--warmup N", &options.warmup, "Warm-up steps of the learning rate (default 0)");
  add("--clip X", &options.clip, "Clip the gradient to this norm (default 0: off)");
  add.compute(options.compute);
  add_parallel_options(
      add, options.parallel, "data (rows of the batch), all-gather, ring, ulysses (tokens), heads (of layers)");
}

bool continues(const std::string& task) { return task == "text" || task == "induction"; }

TrainRun make_run(const TrainCommandOptions& options) {
  const lm::Task& task = lm::task_named(options.task, "train", "--task");
  const std::string own = task.letters.empty() ? lm::default_text() : std::string(task.letters);
  const std::string text = options.text.empty() ? own : load_text("--text", options.text);
  const auto in_text = [&](auto work) {  // of the text of its own nothing can be wrong but how much of it is asked for
    return options.text.empty() ? about("--context", work) : about_file("--text", options.text, work);
  };
  lm::CharTokenizer tokenizer = in_text([&] { return lm::CharTokenizer::from_text(text); });
  const std::vector<Index> ids = tokenizer.encode(text);
  const Index alphabet = tokenizer.vocab_size();
  lm::AttentionLM model = make_model(options, task, tokenizer);
  const Index context = model.config().context;

  const auto source = [&](std::uint64_t seed) {
    return task.batches(ids, alphabet, {options.batch.value_or(task.batch), context}, seed);
  };
  lm::BatchSource fresh = in_text([&] { return source(~options.seed); });
  if (!options.batches.empty() && options.task != "text")
    throw UsageError("--batches is for --task text, which learns the next character: got --task " + options.task);
  if (options.tokens.value_or(0) > 0 && !continues(options.task))
    throw UsageError("--tokens is for tasks that continue a text, text and induction: got --task " + options.task);
  lm::BatchSource batches =
      options.batches.empty() ? source(options.seed) : about_file("--batches", options.batches, [&] {
        return lm::BatchSource::from_arrays(to_i64(load_npy("--batches", options.batches)));
      });

  if (batches.vocab_size() > model.config().vocab_size || batches.shape().context > context) {
    throw UsageError("--batches " + escaped(options.batches) + ": ids must be below " +
                     std::to_string(model.config().vocab_size) + " and windows at most " + std::to_string(context) +
                     " long: got ids up to " + std::to_string(batches.vocab_size() - 1) + ", windows of " +
                     std::to_string(batches.shape().context));
  }

  if (!options.batches.empty() && options.batch && *options.batch != batches.shape().batch) {
    throw UsageError("--batch must be the " + std::to_string(batches.shape().batch) +
                     " windows per step of --batches: got " + std::to_string(*options.batch));
  }

  lm::TrainOptions train;
  train.steps = options.steps.value_or(batches.steps() >= 0 ? batches.steps() : task.steps);
  if (batches.steps() >= 0 && train.steps > batches.steps()) {
    throw UsageError("--steps must be at most the " + std::to_string(batches.steps()) + " of --batches: got " +
                     std::to_string(train.steps));
  }
  train.schedule.kind = options.schedule == "cosine" ? lm::ScheduleKind::kCosine : lm::ScheduleKind::kConstant;
  train.schedule.rate = options.rate.value_or(task.rate);
  train.schedule.warmup_steps = options.warmup;
  train.adam.weight_decay = options.weight_decay;
  train.clip_norm = options.clip;
  train.seed = options.seed;
  std::string sample = choose_sample(options, tokenizer, ids, context, fresh);
  lm::HeadSet cut;
  if (!options.cut.empty()) cut = parse_heads("--cut", options.cut, model.config());
  return {std::move(tokenizer), std::move(model), std::move(batches), std::move(fresh), std::move(train),
      std::move(sample), std::move(cut)};
}

}  // namespace qkv::cli
