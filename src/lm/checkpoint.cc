// Checkpoints: a trained model <-> named tensors and metadata.
#include <algorithm>
#include <cmath>

#include "lm/metadata.h"
#include "qkv/lm/task.h"
#include "qkv/lm/trainer.h"

namespace qkv::inline v0::lm {
namespace {

constexpr const char* kStep = "lm.step";
constexpr const char* kTask = "lm.task";
constexpr const char* kAdamStep = "lm.adam_step";
constexpr const char* kAdamMean = "adam.mean";
constexpr const char* kAdamSquare = "adam.square";
constexpr const char* kFromState = "checkpoint_from_state";

AnyTensor vector_tensor(const std::vector<float>& values) {
  Tensor<float> tensor({static_cast<Index>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data());
  return any_tensor(tensor);
}

std::vector<float> tensor_vector(const AnyTensor& tensor) {
  const Tensor<float> values = to_f32(tensor);
  return {values.span().begin(), values.span().end()};
}

bool is_moment(const StateDict::Entry& entry) { return entry.name == kAdamMean || entry.name == kAdamSquare; }

/// Checks that the file is as large as the model that its metadata describes, before that model is allocated: a hostile
/// file cannot exhaust memory.
void check_size(const StateDict& state, const AttentionLMConfig& c) {
  const std::string_view tok = c.blocks ? "transformer.wte.weight" : "tok.weight";
  const std::string_view pos = c.blocks ? "transformer.wpe.weight" : "pos.weight";
  const auto fits = [&](std::string_view name, Index rows) {
    const std::vector<Index> wanted{rows, c.embed_dim};
    check<ShapeError>(state.at(name).sizes == wanted, kFromState, name, " must be ", shape_text(wanted.data(), 2),
        " as the metadata says: got ", state.at(name));
  };
  fits(tok, c.vocab_size);
  if (c.positions == PositionKind::kLearned) fits(pos, c.context);
  Index elements = 0;
  for (const StateDict::Entry& entry : state.entries()) elements += checked_count(entry.tensor.sizes);
  // Every layer has two square projections (q and output); those of k and v are narrower where heads share them.
  const Index kv_width = c.embed_dim / c.num_heads * c.num_kv_heads;
  const Index least = 2 * c.num_layers * c.embed_dim * (c.embed_dim + kv_width);
  check<ShapeError>(elements >= least, kFromState, "parameters of ", c.num_layers, " layers of width ", c.embed_dim,
      " must have at least ", least, " elements: got ", elements);
  // One wide tensor may have the elements of any number of narrow layers.
  for (Index layer = 0; layer < c.num_layers; ++layer) {
    const std::string number = std::to_string(layer);
    const std::string name = c.blocks            ? "transformer.h." + number + ".attn.c_attn.weight"
                             : c.num_layers == 1 ? "attn.W_q.weight"
                                                 : "attn." + number + ".W_q.weight";
    check<OptionError>(state.contains(name), kFromState, "each of the ", c.num_layers,
        " layers that the metadata names must be in the file: got no ", name);
  }
}

}  // namespace

StateDict checkpoint_to_state(const AttentionLM& model, const CharTokenizer& tokenizer, const std::string& task,
    Index step, const AdamState* adam) {
  StateDict state = model.state_dict();
  model.config().save_metadata(state.metadata);
  tokenizer.save_metadata(state.metadata);
  state.metadata[kTask] = task;
  state.metadata[kStep] = std::to_string(step);
  if (adam != nullptr) {
    state.metadata[kAdamStep] = std::to_string(adam->step);
    state.add(kAdamMean, vector_tensor(adam->mean));
    state.add(kAdamSquare, vector_tensor(adam->square));
  }
  return state;
}

Checkpoint checkpoint_from_state(const StateDict& state) {
  const Index step = read_index(state.metadata, kFromState, kStep);
  const AttentionLMConfig config = AttentionLMConfig::from_metadata(state.metadata);
  check_size(state, config);
  Checkpoint checkpoint{AttentionLM(config), CharTokenizer::from_metadata(state.metadata),
      read_text(state.metadata, kFromState, kTask), step, {}};

  const std::string& task = checkpoint.task;
  const Index symbols = task_named(task, kFromState, kTask).vocab_size(checkpoint.tokenizer.vocab_size());
  check<OptionError>(symbols == config.vocab_size, kFromState, "vocab_size must be the number of symbols ", symbols,
      " of the tokenizer and task ", task, ": got ", config.vocab_size);

  StateDict parameters;
  for (const StateDict::Entry& entry : state.entries()) {
    if (!is_moment(entry)) parameters.add(entry.name, entry.tensor.clone());
  }
  checkpoint.model.load_state_dict(parameters);
  for (const nn::Parameter& one : checkpoint.model.parameters()) {
    check<OptionError>(!std::ranges::any_of(one.value, [](float value) { return !std::isfinite(value); }), kFromState,
        "numbers of ", one.name, " must be finite: got nan or inf, as from a training that diverged");
  }

  if (state.metadata.contains(kAdamStep)) {
    AdamState adam{read_index(state.metadata, kFromState, kAdamStep), tensor_vector(state.at(kAdamMean)),
        tensor_vector(state.at(kAdamSquare))};
    Adam(checkpoint.model.parameter_count()).load_state(adam);  // the same checks as when training resumes
    checkpoint.adam = std::move(adam);
  }
  return checkpoint;
}

}  // namespace qkv::inline v0::lm
