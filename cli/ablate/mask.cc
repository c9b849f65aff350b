// The causal mask is taken away: from a trained toy language model, and from the training itself.
#include <fmt/format.h>

#include <algorithm>

#include "ablate/ablate.h"
#include "core/random.h"
#include "qkv/lm/attention_report.h"
#include "qkv/lm/trainer.h"

namespace qkv::cli {
namespace {

constexpr std::string_view kSample = "abababab";

// Streams of random numbers under the seed.
constexpr std::uint32_t kReplaceStream = 4, kTextStream = 5, kFreshTextStream = 6;

/// One way of running one of the models.
struct Run {
  std::string name;
  lm::PredictionScore score;
  double future = 0;            ///< share of the weight on j > i, mean over the rows that have a future
  double next = 0;              ///< share on j = i + 1
  double moved = 0;             ///< share of positions whose logits change when all that follows is replaced
  double right_after = 0;       ///< share still predicted rightly then
  double follows = 0;           ///< share whose prediction becomes the character that was put at i + 1
  judge::Array sample_weights;  ///< [T, T]
};

/// For every position i, replaces all characters after it and compares what is predicted at i.
void replace_the_future(
    const lm::AttentionLM& model, const lm::Batch& batch, std::uint64_t seed, Run& run, Context& context) {
  const Tensor<float> before = model.logits(batch.inputs, context);  // [B, T, V]
  const Index rows = before.size(0), length = before.size(1), vocab = before.size(2);
  Random random(seed, kReplaceStream);
  Index moved = 0, right = 0, follows = 0;
  for (Index i = 0; i + 1 < length; ++i) {
    Tensor<Index> changed = batch.inputs.clone();
    for (Index b = 0; b < rows; ++b) {
      for (Index j = i + 1; j < length; ++j) {  // any character other than the one there
        Index& id = changed.data()[b * length + j];
        id = (id + 1 + static_cast<Index>(random.below(static_cast<std::uint64_t>(vocab - 1)))) % vocab;
      }
    }
    const Tensor<float> after = model.logits(changed, context);
    for (Index b = 0; b < rows; ++b) {
      const float* old_row = before.data() + (b * length + i) * vocab;
      const float* row = after.data() + (b * length + i) * vocab;
      const Index predicted = std::max_element(row, row + vocab) - row;
      moved += !std::equal(row, row + vocab, old_row);
      right += predicted == batch.targets.data()[b * length + i];
      follows += predicted == changed.data()[b * length + i + 1];
    }
  }
  const double positions = static_cast<double>(rows * (length - 1));
  run.moved = static_cast<double>(moved) / positions;
  run.right_after = static_cast<double>(right) / positions;
  run.follows = static_cast<double>(follows) / positions;
}

void measure_weights(const lm::AttentionLM& model, const lm::Batch& batch, Run& run, Context& context) {
  const std::vector<Tensor<float>> layers = model.attention_weights(batch.inputs, context);
  const View<const float, 4> weights = layers[0];  // [B, 1, T, T]
  const Index length = weights.size(2);
  for (Index b = 0; b < weights.size(0); ++b) {
    for (Index i = 0; i + 1 < length; ++i) {
      for (Index j = i + 1; j < length; ++j) run.future += static_cast<double>(weights(b, 0, i, j));
      run.next += static_cast<double>(weights(b, 0, i, i + 1));
    }
  }
  const double rows = static_cast<double>(weights.size(0) * (length - 1));
  run.future /= rows;
  run.next /= rows;
}

Run examine(std::string name, const lm::AttentionLM& model, const lm::CharTokenizer& tokenizer,
    const lm::BatchSource& fresh, std::uint64_t seed, Context& context) {
  Run run;
  run.name = std::move(name);
  run.score = lm::score_predictions(model, fresh, 4, context);
  lm::Batch batch;
  fresh.fill(4, batch);
  replace_the_future(model, batch, seed, run, context);
  measure_weights(model, batch, run, context);
  const std::vector<Index> ids = tokenizer.encode(kSample);
  const lm::AttentionReport report = lm::attention_report(model, ids, context);
  const Index length = static_cast<Index>(ids.size());
  run.sample_weights = judge::Array({length, length});
  std::ranges::copy(report.weights.span(), run.sample_weights.data.begin());
  return run;
}

/// Characters drawn one by one: the past says nothing about the next.
std::vector<Index> random_text(std::uint64_t seed, std::uint32_t stream, Index vocab) {
  std::vector<Index> ids(50'000);
  Random random(seed, stream);
  for (Index& id : ids) id = static_cast<Index>(random.below(static_cast<std::uint64_t>(vocab)));
  return ids;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::vector<Claim> claims_of(const Run& trained, const Run& bare, const Run& retrained, const Run& masked) {
  return {
      {"With the mask no prediction depends on what follows.", trained.moved == 0 && trained.future == 0,
          fmt::format("replacing all that follows changes the logits at {} of the positions", percent(trained.moved))},
      {"The trained model, its mask taken away, puts weight on a future that it never learned to read, and predicts "
       "worse.",
          bare.future > 0 && bare.score.loss > trained.score.loss,
          fmt::format("{} of the weight lies in the future; loss {:.2f} instead of {:.2f}", percent(bare.future),
              bare.score.loss, trained.score.loss)},
      {"Trained again without the mask, the model reads the future: its loss is far lower, and when what follows is "
       "replaced it is wrong more often than the model that never saw it.",
          retrained.score.loss < trained.score.loss / 2 && retrained.future > 0 &&
              retrained.right_after < trained.right_after && retrained.right_after < retrained.score.accuracy - 0.1,
          fmt::format("loss {:.3f} instead of {:.3f}; {} right, {} when what follows is replaced (with the mask {})",
              retrained.score.loss, trained.score.loss, percent(retrained.score.accuracy),
              percent(retrained.right_after), percent(trained.right_after))},
      {"Where there is no future to read, as in generation, what it learned is worth little: with the mask back on it "
       "is worse than the model that had it all along.",
          masked.score.loss > trained.score.loss && masked.score.accuracy < trained.score.accuracy,
          fmt::format("loss {:.2f} against {:.2f}, {} right against {}", masked.score.loss, trained.score.loss,
              percent(masked.score.accuracy), percent(trained.score.accuracy))}};
}

/// Of the two models that learned random characters.
Claim claim_of_random(const Run& with_mask, const Run& without, Index vocab) {
  const double chance = 1 / static_cast<double>(vocab);
  return {fmt::format("On random characters, where the past says nothing, the mask leaves one guess in {}. Without it "
                      "the model copies the answer from the next position.",
              vocab),
      with_mask.score.accuracy < 2 * chance && without.score.accuracy > 0.8 && without.follows > 0.8,
      fmt::format(
          "{} right with the mask, {} without; {} of its predictions become the character put instead of the next",
          percent(with_mask.score.accuracy), percent(without.score.accuracy), percent(without.follows))};
}

std::string line_of(const Run& run) {
  return fmt::format("{:<28}{:>7.3f}{:>7}{:>9}{:>10}{:>9}{:>9}", run.name, run.score.loss, percent(run.score.accuracy),
      percent(run.future), percent(run.next), percent(run.right_after), percent(run.follows));
}

Json to_json(const Run& run) {
  return {{"name", run.name}, {"loss", run.score.loss}, {"accuracy", run.score.accuracy},
      {"most_frequent", run.score.most_frequent}, {"weight_on_future", run.future}, {"weight_on_next", run.next},
      {"logits_move_with_future", run.moved}, {"accuracy_with_other_future", run.right_after},
      {"prediction_follows_next", run.follows}, {"sample_weights", nested(run.sample_weights)}};
}

}  // namespace

Experiment ablate_mask(const AblateOptions& options, Context& context) {
  const std::string text = lm::default_text();
  const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(text);
  const Index vocab = tokenizer.vocab_size();
  const auto windows = [](std::vector<Index> ids, std::uint64_t seed) {
    return lm::BatchSource::windows(std::move(ids), {}, seed);
  };
  const lm::BatchSource source = windows(tokenizer.encode(text), options.seed);
  const lm::BatchSource fresh = windows(tokenizer.encode(text), options.seed + 1);
  const lm::BatchSource noise = windows(random_text(options.seed, kTextStream, vocab), options.seed);
  const lm::BatchSource fresh_noise = windows(random_text(options.seed, kFreshTextStream, vocab), options.seed + 1);
  Index done = 0;
  // Every model starts from the same parameters; both of a text see the same batches.
  const auto train = [&](const lm::BatchSource& batches, bool causal) {
    lm::AttentionLM model({.vocab_size = vocab, .causal = causal}, options.seed);
    lm::TrainOptions training{.steps = options.steps, .seed = options.seed};
    training.on_step = [&](const lm::StepReport&) {
      if (options.on_step) options.on_step(++done, kTrainings * options.steps);
    };
    lm::Trainer(model, training).run(batches, context);
    return model;
  };
  std::vector<Run> runs;
  const auto add = [&](const char* name, const lm::AttentionLM& model, const lm::BatchSource& batches) {
    runs.push_back(examine(name, model, tokenizer, batches, options.seed, context));
  };
  lm::AttentionLM causal = train(source, true), open = train(source, false);
  add("trained with the mask", causal, fresh);
  causal.set_causal(false);
  add("the same, mask taken away", causal, fresh);
  add("trained without the mask", open, fresh);
  open.set_causal(true);
  add("the same, mask put on", open, fresh);
  add("random text, with the mask", train(noise, true), fresh_noise);
  add("random text, without", train(noise, false), fresh_noise);

  Experiment experiment;
  experiment.title = fmt::format("No mask: the toy language model, {} steps each", options.steps);
  experiment.claims = claims_of(runs[0], runs[1], runs[2], runs[3]);
  experiment.claims.push_back(claim_of_random(runs[4], runs[5], vocab));
  experiment.maps.push_back(map_of("no mask", {"as trained", "mask off", "retrained", "random text"},
      {runs[0].sample_weights, runs[1].sample_weights, runs[2].sample_weights, runs[5].sample_weights}));
  for (view::AttentionMap& map : experiment.maps) map.query_tokens = map.key_tokens = view::characters(kSample);
  experiment.table = {
      fmt::format("{:<28}{:>7}{:>7}{:>9}{:>10}{:>9}{:>9}", "", "", "", "weight", "weight", "right,", "says the"),
      fmt::format(
          "{:<28}{:>7}{:>7}{:>9}{:>10}{:>9}{:>9}", "", "loss", "right", "on j > i", "on i + 1", "replaced", "new one")};
  Json list = Json::array();
  for (const Run& run : runs) {
    experiment.table.push_back(line_of(run));
    list.push_back(to_json(run));
  }
  experiment.numbers = {{"steps", options.steps}, {"sample", kSample}, {"vocab_size", vocab}, {"runs", list}};
  return experiment;
}

}  // namespace qkv::cli
