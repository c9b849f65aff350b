// The toy language model: made, trained step by step, kept at moments, continued.
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "lesson/engine/cut.h"
#include "lesson/engine/face.h"
#include "lesson/engine/model.h"
#include "qkv/lm/generate.h"

namespace qkv::inline v0::lesson {
namespace {

std::optional<Model> trained;

lm::BatchSource make_source(
    const std::string& task, const std::vector<Index>& ids, Index alphabet, lm::BatchShape shape, std::uint64_t seed) {
  if (task == "next") return lm::BatchSource::windows(ids, shape, seed);
  if (task == "previous") return lm::BatchSource::previous(alphabet, shape, seed);
  fail<OptionError>("start", "task must be next or previous: got \"", task, "\"");
}

}  // namespace

Model& model(const char* function) {
  check<OptionError>(trained.has_value(), function, "there is no model yet: start one");
  return *trained;
}

}  // namespace qkv::inline v0::lesson

using namespace qkv;

/// A new model in place of the one before; an empty text is the default text. Its number of parameters.
QKV_LESSON int lesson_start(const char* text, const char* task, int heads, int layers, int blocks, int dim, int context,
    double seed, double rate, int batch) {
  return lesson::answer([&] {
    const std::string all = *text == '\0' ? lm::default_text() : text;
    lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(all);
    const auto number = static_cast<std::uint64_t>(seed);
    lm::BatchSource source = lesson::make_source(
        task, tokenizer.encode(all), tokenizer.vocab_size(), {.batch = batch, .context = context}, number);
    lm::AttentionLM made({.vocab_size = tokenizer.vocab_size(),
                             .context = context,
                             .embed_dim = dim,
                             .num_heads = heads,
                             .num_layers = layers,
                             .blocks = blocks != 0},
        number);
    lm::TrainOptions options;
    options.steps = std::numeric_limits<Index>::max();
    options.schedule.rate = rate;
    options.seed = number;
    lesson::trained.reset();
    lesson::Model& m =
        lesson::trained.emplace(lesson::Model{task, std::move(tokenizer), std::move(made), std::move(source)});
    m.trainer = std::make_unique<lm::Trainer>(m.lm, options);
    return static_cast<int>(m.lm.parameter_count());
  });
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
    lesson::Model& m = lesson::model("generate");
    const lesson::Cut without(m.lm, cut, cuts);
    lm::GenerateOptions options;
    options.tokens = n;
    options.greedy = temperature == 0;
    if (!options.greedy) options.temperature = temperature;
    options.seed = static_cast<std::uint64_t>(seed);
    return (
        lesson::text() = m.tokenizer.decode(lm::generate(m.lm, m.tokenizer.encode(prompt), options, lesson::context())))
        .c_str();
  });
}
