// The toy language model: made, trained step by step, kept at moments, continued.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "engine/face.h"
#include "engine/model.h"
#include "qkv/lm/generate.h"

namespace qkv::inline v0::lesson {
namespace {

std::optional<Model> trained;

/// Throws where the model and what its batches keep take more than 256 MiB, whatever the numbers are.
void check_memory(const lm::AttentionLMConfig& config, Index batch) {
  const auto of = [](Index size) { return static_cast<double>(size); };
  const double dim = of(config.embed_dim), layers = of(config.num_layers), vocab = of(config.vocab_size);
  const double parameters = 12 * layers * dim * dim + (2 * vocab + of(config.context)) * dim;
  const double kept = of(batch) * of(config.context) * (20 * layers * dim + 2 * vocab);
  constexpr double kMost = 1 << 26;
  check<OptionError>(parameters + kept <= kMost, "start", "the model must be smaller, to fit in a page's memory: got ",
      config.num_layers, " layers of width ", config.embed_dim, ", context ", config.context, ", batch ", batch);
}

/// " --name value" where it is not the task's.
template <class T> std::string option(const char* name, T value, T usual) {
  return value == usual ? std::string() : std::string(" --") + name + " " + part_text(value);
}

}  // namespace

Model& model(const char* function) {
  check<OptionError>(trained.has_value(), function, "there is no model yet: start one");
  return *trained;
}

}  // namespace qkv::inline v0::lesson

using namespace qkv;

/// A new model in place of the one before. Its number of parameters. What is 0 (blocks: -1), and an empty text, are the
/// task's: "text", "previous", "same" or "induction".
QKV_LESSON int lesson_start(const char* text, const char* task, int heads, int layers, int blocks, int dim, int context,
    double seed, double rate, int batch) {
  return lesson::answer([&] {
    const lm::Task& chosen = lm::task_named(task, "start");
    const bool own_text = *text != '\0';
    const std::string all = own_text ? text : chosen.letters.empty() ? lm::default_text() : std::string(chosen.letters);
    lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(all);
    lm::AttentionLMConfig config = chosen.config;
    config.vocab_size = chosen.vocab_size(tokenizer.vocab_size());
    if (heads > 0) config.num_heads = heads;
    if (layers > 0) config.num_layers = layers;
    if (blocks >= 0) config.blocks = blocks != 0;
    if (dim > 0) config.embed_dim = dim;
    if (context > 0) config.context = context;
    constexpr double kSeeds = 9007199254740992;  // whole numbers of a double
    check<OptionError>(seed >= 0 && seed < kSeeds && seed == std::floor(seed), "start",
        "seed must be a whole number from 0 to 2^53 - 1: got ", seed);
    check<OptionError>(rate >= 0 && rate < 1e9, "start", "rate must be above 0: got ", rate);
    const auto number = static_cast<std::uint64_t>(seed);
    const Index rows = batch > 0 ? batch : chosen.batch;
    lesson::check_memory(config, rows);
    lm::BatchSource source = chosen.batches(
        tokenizer.encode(all), tokenizer.vocab_size(), {.batch = rows, .context = config.context}, number);
    lm::TrainOptions options;
    options.steps = std::numeric_limits<Index>::max();
    options.schedule.rate = rate > 0 ? rate : chosen.rate;
    options.seed = number;
    lm::AttentionLM made(config, number);
    lesson::trained.reset();
    lesson::Model& m = lesson::trained.emplace(lesson::Model{&chosen, std::move(tokenizer), std::move(made),
        std::move(source), all, own_text, number, options.schedule.rate});
    m.trainer = std::make_unique<lm::Trainer>(m.lm, options);
    return static_cast<int>(m.lm.parameter_count());
  });
}

/// The tool's command that repeats the training so far.
QKV_LESSON const char* lesson_command() {
  return lesson::answer([]() -> const char* {
    using lesson::option;
    const lesson::Model& m = lesson::model("command");
    const lm::AttentionLMConfig &config = m.lm.config(), &usual = m.task->config;
    std::string& command = lesson::text() = "qkv train";
    if (m.own_text) command += " --text text.txt";
    command += option("task", std::string(m.task->name), std::string("text"));
    command +=
        option("heads", config.num_heads, usual.num_heads) + option("layers", config.num_layers, usual.num_layers);
    if (config.blocks != usual.blocks) command += config.blocks ? " --blocks" : " --no-blocks";
    command += option("dim", config.embed_dim, usual.embed_dim) + option("context", config.context, usual.context) +
               option("seed", m.seed, std::uint64_t{0}) + option("lr", m.rate, m.task->rate) +
               option("batch", m.source.shape().batch, m.task->batch);
    command += " --steps " + std::to_string(m.trainer->steps_done()) + " --isa scalar --threads 1";
    return command.c_str();
  });
}

/// The loss of who knows by heart how the text goes on, and sees its last `seen` characters; 0: how often each comes.
QKV_LESSON double lesson_known_loss(int seen) {
  return lesson::answer([&] {
    const auto& m = lesson::model("known_loss");
    const std::vector<Index> text = m.tokenizer.encode(m.text);
    std::map<std::vector<Index>, double> count;
    const auto part = [&](std::size_t at, int length) {  // round and round
      std::vector<Index> ids;
      for (; length > 0; --length, ++at) ids.push_back(text[at % text.size()]);
      return ids;
    };
    for (std::size_t at = 0; at < text.size(); ++at) ++count[part(at, seen)], ++count[part(at, seen + 1)];
    double sum = 0;
    for (std::size_t at = 0; at < text.size(); ++at) sum -= std::log(count[part(at, seen + 1)] / count[part(at, seen)]);
    return sum / static_cast<double>(text.size());
  });
}

/// What the model learns.
QKV_LESSON const char* lesson_corpus() {
  return lesson::answer([] { return lesson::model("corpus").text.c_str(); });
}

/// The model's characters, in the order of their numbers.
QKV_LESSON const char* lesson_symbols() {
  return lesson::answer([]() -> const char* {
    const lm::CharTokenizer& tokenizer = lesson::model("symbols").tokenizer;
    std::vector<Index> ids(static_cast<std::size_t>(tokenizer.vocab_size()));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Index>(i);
    return (lesson::text() = tokenizer.decode(ids)).c_str();
  });
}

/// The loss of the last of n steps.
QKV_LESSON double lesson_steps(int n) {
  return lesson::answer([&] {
    lesson::Model& m = lesson::model("steps");
    double loss = 0;
    for (int i = 0; i < n; ++i) loss = m.trainer->step(m.source, lesson::context());
    return loss;
  });
}
QKV_LESSON int lesson_step() {
  return lesson::answer([] { return static_cast<int>(lesson::model("step").trainer->steps_done()); });
}

/// Keeps this moment under a number from 1.
QKV_LESSON int lesson_save() {
  return lesson::answer([] {
    lesson::Model& m = lesson::model("save");
    lesson::Moment moment{{}, m.trainer->adam().state()};
    for (const nn::Parameter& one : m.lm.parameters())
      moment.parameters.insert(moment.parameters.end(), one.value.begin(), one.value.end());
    const int number = m.moments.empty() ? 1 : m.moments.rbegin()->first + 1;
    m.moments.emplace(number, std::move(moment));
    return number;
  });
}
QKV_LESSON int lesson_restore(int number) {
  return lesson::answer([&] {
    lesson::Model& m = lesson::model("restore");
    const auto moment = m.moments.find(number);
    check<OptionError>(moment != m.moments.end(), "restore", "there is no kept moment ", number);
    const float* from = moment->second.parameters.data();
    for (nn::Parameter& one : m.lm.parameters()) {
      std::copy(from, from + one.value.size(), one.value.begin());
      from += one.value.size();
    }
    m.trainer->resume(moment->second.adam);
    return number;
  });
}
QKV_LESSON void lesson_forget(int number) {
  lesson::answer([&] { return lesson::model("forget").moments.erase(number); });
}

/// n characters after the prompt; temperature 0 takes the likeliest.
QKV_LESSON const char* lesson_generate(
    const char* prompt, int n, double temperature, double seed, const int* cut, int cuts) {
  return lesson::answer([&]() -> const char* {
    const lesson::Model& m = lesson::model("generate");
    lm::GenerateOptions options;
    options.tokens = n;
    options.cut = lesson::heads_of(cut, cuts);
    options.greedy = temperature == 0;
    if (!options.greedy) options.temperature = temperature;
    options.seed = static_cast<std::uint64_t>(seed);
    return (
        lesson::text() = m.tokenizer.decode(lm::generate(m.lm, m.tokenizer.encode(prompt), options, lesson::context())))
        .c_str();
  });
}
