// What each step draws in a terminal.
#include "ablate/ablate.h"
#include "lesson/lesson.h"
#include "train/report.h"

namespace qkv::cli {
namespace {

using Drawings = std::map<std::string, std::vector<std::vector<Shown>>>;

/// A row of an array, or all tokens' rows.
Shown row(const std::string& title, const std::string& array) { return {title, "lesson." + array, Rows::kPlain}; }
Shown rows(const std::string& title, const std::string& array) { return {title, "lesson." + array, Rows::kTokens}; }

const Drawings& drawings() {
  static const Drawings all{{"average", {{rows("v", "v"), row("mean(v)", "mean")}}},
      {"dot", {{rows("q", "q"), rows("k", "k"), row("q k^T, blue", "products.blue")}}},
      {"scale", {{row("q k^T, blue", "products.blue"), row("/ sqrt(d)", "scaled.blue")},
                    {row("softmax(q k^T)", "unscaled.blue"), row("softmax(q k^T / sqrt(d))", "weights.blue")}}},
      {"softmax",
          {{row("scaled, blue", "scaled.blue"), row("exp(scaled - max)", "exp.blue"), row("weights", "weights.blue")}}},
      {"mix", {{row("weights, blue", "weights.blue"), rows("v", "v"), row("weights v", "out.blue")}}},
      {"project", {{{"x", "x"}, {"W_k", "W_k", Rows::kPlain}, {"W_v", "W_v", Rows::kPlain}},
                      {{"q", "q"}, {"k", "k"}, {"v", "v"}}}},
      {"causal", {{rows("weights", "weights"), rows("causal weights", "causal")}}},
      {"padding", {{rows("weights", "weights"), rows("key_lengths(2)", "padded")}}},
      {"dropout", {{row("weights, blue", "weights.blue"), row("dropout, p = 0.1", "dropped.blue")}}},
      {"heads", {{rows("view, transpose: head 0", "right.0"), rows("head 1", "right.1")},
                    {row("view: head 0", "wrong.0"), row("head 1", "wrong.1")}}},
      {"backward", {{row("p, blue", "weights.blue"), row("dp", "dp.blue"), row("ds = p (dp - sum(p dp))", "ds.blue")},
                       {rows("k", "k"), row("dq = ds k / sqrt(d)", "dq.blue")}}}};
  return all;
}

/// Step 12: the default model, trained.
view::AttentionMap trained_map(Context& context) {
  const TrainCommandOptions options;
  TrainRun run = make_run(options);
  lm::Trainer(run.model, run.train).run(run.source, context);
  return report_map(make_report(run, options, {}, context));
}

}  // namespace

LessonDrawing lesson_drawing(const std::string& id, const Example& example, Context& context) {
  LessonDrawing drawing;
  if (const auto found = drawings().find(id); found != drawings().end()) drawing.shown = found->second;
  const auto map = [&](const std::string& name) {
    drawing.maps.push_back(map_of("", {""}, {example[name]}));
    drawing.maps.back().query_tokens = drawing.maps.back().key_tokens = tokens();
  };
  if (id == "softmax") map("lesson.weights");
  if (id == "causal") map("lesson.causal");
  if (id == "padding") map("lesson.padded");
  if (id == "learn") drawing.maps.push_back(trained_map(context));
  return drawing;
}

}  // namespace qkv::cli
