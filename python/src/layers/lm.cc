// The language model: made from a text, trained in slices of time, queried.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "arrays/choice.h"
#include "layers/nn.h"
#include "qkv/io/safetensors.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/generate.h"
#include "qkv/lm/task.h"
#include "qkv/lm/trainer.h"

namespace qkv::python {

namespace {

using Numbers = std::vector<Index>;
using Cut = std::vector<std::pair<Index, Index>>;  // layers and their heads

lm::HeadSet heads_of(const Cut& cut) {
  lm::HeadSet heads;
  for (const auto& [layer, head] : cut) heads.push_back({layer, head});
  return heads;
}

// A checkpoint that trains: the parameters stay where they are while a Training runs.
struct ModelObject {
  lm::Checkpoint value;
};

constexpr Word<lm::PositionKind> kPositions[] = {
    {"learned", lm::PositionKind::kLearned}, {"rotary", lm::PositionKind::kRotary}};

void make_model(ModelObject* self, const std::string& text, const std::string& task, const nb::kwargs& given) {
  lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(text);
  const lm::Task& wanted = lm::task_named(task, "AttentionLM");
  lm::AttentionLMConfig c = wanted.config;
  std::optional<RotaryOptions> rope;
  std::uint64_t seed = 0;
  Keywords("AttentionLM", given)("context", c.context)("width", c.embed_dim)("heads", c.num_heads)("kv_heads",
      c.num_kv_heads)("layers", c.num_layers)("blocks", c.blocks)("rope", rope)("dropout", c.dropout)("seed", seed)
      .word("positions", c.positions, kPositions)
      .end();
  c.vocab_size = wanted.vocab_size(tokenizer.vocab_size());
  if (rope && c.positions != lm::PositionKind::kRotary) {
    throw OptionError("[AttentionLM] rope is for rotary positions: give positions=\"rotary\" too, got \"learned\"");
  }
  if (rope) c.rotary = *rope;
  new (self) ModelObject{{lm::AttentionLM(c, seed), std::move(tokenizer), task, 0, std::nullopt}};
}

nb::dict model_config(const ModelObject& object) {
  const lm::AttentionLMConfig& config = object.value.model.config();
  nb::dict d;
  d["vocab_size"] = config.vocab_size;
  d["context"] = config.context;
  d["width"] = config.embed_dim;
  d["heads"] = config.num_heads;
  d["kv_heads"] = config.num_kv_heads == 0 ? config.num_heads : config.num_kv_heads;
  d["layers"] = config.num_layers;
  d["blocks"] = config.blocks;
  d["positions"] = config.positions == lm::PositionKind::kRotary ? "rotary" : "learned";
  d["causal"] = config.causal;
  d["dropout"] = config.dropout;
  d["task"] = object.value.task.c_str();
  return d;
}

const lm::Task& task_of(const ModelObject& object) { return lm::task_named(object.value.task, "AttentionLM"); }

lm::BatchSource source_of(const ModelObject& object, const std::string& text, Index batch, std::uint64_t seed) {
  const lm::CharTokenizer& tokenizer = object.value.tokenizer;
  return task_of(object).batches(
      tokenizer.encode(text), tokenizer.vocab_size(), {batch, object.value.model.config().context}, seed);
}

// One run of a trainer over one source, in slices of time between which Python may draw, or stop.
class Training {
 public:
  Training(ModelObject& object, const lm::TrainOptions& options, lm::BatchSource source, bool resume)
      : object_(object), source_(std::move(source)), end_(options.steps), trainer_(object.value.model, options) {
    if (!resume) return;
    if (!object.value.adam) {
      throw OptionError("[AttentionLM.fit] resume goes on with the optimizer of the last fit, which this model lacks");
    }
    trainer_.resume(*object.value.adam);
  }

  // As many steps as `seconds` has room for, at least one while there are any. Losses are kept here: what Ctrl-C
  // interrupts after a slice has all of them.
  void run(double seconds) {
    const Computation call;
    const auto start = std::chrono::steady_clock::now();
    while (trainer_.steps_done() < end_) {
      losses_.push_back(trainer_.step(source_, *call.context));
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) break;
    }
  }

  // Saved to resume from here.
  void keep() {
    object_.value.adam = trainer_.adam().state();
    object_.value.step = trainer_.steps_done();
  }

  Index steps() const { return end_; }
  Index steps_done() const { return trainer_.steps_done(); }
  const std::vector<double>& losses() const { return losses_; }
  double last_loss() const { return losses_.empty() ? 0 : losses_.back(); }

 private:
  ModelObject& object_;
  lm::BatchSource source_;
  Index end_;
  lm::Trainer trainer_;
  std::vector<double> losses_;
};

void bind_training(nb::module_& m) {
  nb::class_<Training>(m, "Training")
      .def(
          "__init__",
          [](Training* self, ModelObject& object, const std::string& text, std::optional<Index> batch, bool resume,
              const nb::kwargs& given) {
            const lm::Task& task = task_of(object);
            lm::TrainOptions o;
            o.steps = task.steps;
            o.schedule.rate = task.rate;
            Keywords("AttentionLM.fit", given)("steps", o.steps)("lr", o.schedule.rate)(
                "warmup", o.schedule.warmup_steps)("min_lr", o.schedule.min_rate)("weight_decay", o.adam.weight_decay)(
                "clip", o.clip_norm)("seed", o.seed)
                .word("schedule", o.schedule.kind,
                    {{"constant", lm::ScheduleKind::kConstant}, {"cosine", lm::ScheduleKind::kCosine}})
                .end();
            new (self) Training(object, o, source_of(object, text, batch.value_or(task.batch), o.seed), resume);
          },
          nb::keep_alive<1, 2>(), nb::arg("model"), nb::arg("text"), nb::arg("batch").none(), nb::arg("resume"),
          nb::arg("options"))
      .def_prop_ro("steps", &Training::steps)
      .def("run", &Training::run)
      .def("keep", &Training::keep)
      .def_prop_ro("steps_done", &Training::steps_done)
      .def_prop_ro("losses", &Training::losses)
      .def_prop_ro("last_loss", &Training::last_loss);
}

// Called after every token: Ctrl-C ends a long generation.
void check_signals(Index, double) {
  const nb::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::string generate(const ModelObject& object, const std::string& prompt, const Cut& cut, const nb::kwargs& given) {
  const lm::CharTokenizer& tokenizer = object.value.tokenizer;
  const Numbers ids = tokenizer.encode(prompt);
  lm::GenerateOptions options;
  Keywords("AttentionLM.generate", given)("tokens", options.tokens)("greedy", options.greedy)(
      "temperature", options.temperature)("top_k", options.top_k)("seed", options.seed)
      .end();
  options.allowed_ids = tokenizer.vocab_size();
  options.cut = heads_of(cut);
  options.on_token = &check_signals;
  const Computation call;
  return tokenizer.decode(lm::generate(object.value.model, ids, options, *call.context));
}

nb::dict share_of(const lm::Share& share) {
  nb::dict d;
  d["mean"] = share.mean;
  d["rows_above_half"] = share.rows_above_half;
  return d;
}

// (weights [L, H, T, T], a dict for each head) of ids [T].
nb::tuple report(const ModelObject& object, const Numbers& ids, const Cut& cut) {
  lm::AttentionReport found;
  {
    const Computation call;
    found = lm::attention_report(object.value.model, ids, *call.context, heads_of(cut));
  }
  nb::list heads;
  for (const lm::HeadReport& head : found.heads) {
    nb::dict d;
    d["layer"] = head.layer;
    d["head"] = head.head;
    d["self"] = share_of(head.self);
    d["previous"] = share_of(head.previous);
    d["first"] = share_of(head.first);
    d["same"] = share_of(head.same);
    heads.append(d);
  }
  return nb::make_tuple(to_numpy(std::move(found.weights)), heads);
}

nb::object logits(const ModelObject& object, const Numbers& ids, const Cut& cut) {
  Tensor<float> found;
  {
    const Computation call;
    found = object.value.model.logits({ids.data(), {1, static_cast<Index>(ids.size())}}, *call.context, heads_of(cut));
  }
  found.reshape({found.size(1), found.size(2)});
  return to_numpy(std::move(found));
}

}  // namespace

void bind_lm(nb::module_& m) {
  nb::class_<lm::AttentionLM, nn::Module>(m, "AttentionLM");
  nb::class_<ModelObject>(m, "Model")
      .def("__init__", &make_model, nb::arg("text"), nb::arg("task"), nb::arg("options"))
      .def_prop_ro("config", &model_config)
      .def_prop_ro("module", [](ModelObject& object) -> lm::AttentionLM& { return object.value.model; })
      .def_prop_ro("step", [](const ModelObject& object) { return object.value.step; })
      .def_prop_ro("vocabulary",
          [](const ModelObject& object) {
            Numbers ids(static_cast<std::size_t>(object.value.tokenizer.vocab_size()));
            for (std::size_t id = 0; id < ids.size(); ++id) ids[id] = static_cast<Index>(id);
            return object.value.tokenizer.decode(ids);
          })
      .def("encode",
          [](const ModelObject& object, const std::string& text) { return object.value.tokenizer.encode(text); })
      .def("logits", &logits)
      .def("report", &report)
      .def("generate", &generate)
      .def("save", [](const ModelObject& object, const std::string& path) {
        const lm::Checkpoint& c = object.value;
        io::save_safetensors(
            path, lm::checkpoint_to_state(c.model, c.tokenizer, c.task, c.step, c.adam ? &*c.adam : nullptr));
      });
  m.def("load_model",
      [](const std::string& path) { return ModelObject{lm::checkpoint_from_state(io::load_safetensors(path))}; });
  m.def("default_text", [](const std::string& task) {
    const std::string_view letters = lm::task_named(task, "AttentionLM").letters;
    return letters.empty() ? lm::default_text() : std::string(letters);
  });
  bind_training(m);
}

}  // namespace qkv::python
