#include "train/report.h"

#include <fmt/format.h>

#include <array>

#include "qkv/lm/generate.h"

namespace qkv::cli {
namespace {

constexpr const char* kHidden = "_";
constexpr Index kFreshWindows = 64;
constexpr Index kFreshBatches = 8;

struct Kind {
  const char* name;
  const char* meaning;
  lm::Share lm::HeadReport::*share;
};
constexpr std::array<Kind, 4> kKinds = {{{"self", "the character itself", &lm::HeadReport::self},
    {"previous", "the one before", &lm::HeadReport::previous}, {"first", "the first one", &lm::HeadReport::first},
    {"same", "all that are the same character", &lm::HeadReport::same}}};

View<const float, 2> head_weights(const TrainReport& report, Index layer, Index head) {
  const View<const float, 4> all = report.attention.weights;  // [L, H, T, T]
  return {&all(layer, head, 0, 0), {all.size(2), all.size(3)}};
}

/// One head: a line for each kind of key.
void print_shares_of_one(const lm::HeadReport& head, Index rows) {
  print_line(bold("share of attention") + faint(fmt::format("   mean over rows 1..{}, and rows above one half", rows)));
  for (const Kind& kind : kKinds) {
    const lm::Share& share = head.*kind.share;
    print_line(fmt::format("  {:<9} {:5.1f} %   {} of {} rows   {}", kind.name, 100 * share.mean, share.rows_above_half,
        rows, faint(kind.meaning)));
  }
}

/// Several heads: a line for each; beside its shares those without the heads that are cut.
void print_shares_of_all(const TrainReport& report, const TrainReport* cut) {
  const char* const beside = cut != nullptr ? "whole/without the heads that are cut" : "rows above one half";
  print_line(bold("share of attention in percent") +
             faint(fmt::format("   mean over rows 1..{} ({})", report.attention.rows, beside)));
  std::string names = "  layer  head";
  for (const Kind& kind : kKinds) names += fmt::format("  {:>12}", kind.name);
  print_line(faint(names));
  for (std::size_t at = 0; at < report.attention.heads.size(); ++at) {
    const lm::HeadReport& head = report.attention.heads[at];
    std::string line = fmt::format("  {:>5}  {:>4}", head.layer, head.head);
    for (const Kind& kind : kKinds) {
      const lm::Share& share = head.*kind.share;
      const double mean = 100 * share.mean;
      line += cut == nullptr ? fmt::format("  {:>6.1f} {:>5}", mean, fmt::format("({})", share.rows_above_half))
                             : fmt::format("  {:>12}", fmt::format("{:.1f}/{:.1f}", mean,
                                                           100 * (cut->attention.heads[at].*kind.share).mean));
    }
    print_line(line);
  }
}

void print_shares(const TrainReport& report, const TrainReport* cut) {
  if (report.attention.heads.size() == 1) {
    print_shares_of_one(report.attention.heads[0], report.attention.rows);
  } else {
    print_shares_of_all(report, cut);
  }
}

std::string names_of(const lm::HeadSet& heads) {
  std::string names;
  for (const lm::HeadIndex& one : heads) names += fmt::format("{}{}:{}", names.empty() ? "" : ",", one.layer, one.head);
  return names;
}

void print_kinds(const TrainReport& report) {
  if (report.kinds.empty()) return;
  print_line(bold("kinds of heads") + faint("   share of the weight, on fresh windows, without the first key"));
  for (std::size_t at = 0; at < report.kinds.size(); ++at) {
    const view::HeadKind& kind = report.kinds[at];
    const lm::HeadReport& head = report.attention.heads[at];
    std::string line = fmt::format("  layer {}, head {}: {:<10}", head.layer, head.head, kind.kind);
    if (kind.share) line += fmt::format(" {:5.1f} %", 100 * *kind.share);
    for (const auto& [name, share] : kind.shares)  // where a character is new, its head has only itself
      if (report.task == "same" && name == "duplicate") line += fmt::format(", {} {:5.1f} %", name, 100 * share);
    print_line(line);
  }
  print_line();
}

void print_scores(const TrainReport& report, const TrainReport* cut) {
  if (report.previous) {
    print_line(fmt::format(
        "on {} fresh windows, head {} puts {:.1f} % on the previous character (least of all rows: {:.1f} %)",
        kFreshWindows, report.previous_head, 100 * report.previous->mean, 100 * report.previous->lowest));
  }
  if (report.predicted) {
    const lm::PredictionScore& score = *report.predicted;
    print_line(
        fmt::format("on fresh windows: loss {:.3f}, {:.1f} % of {} characters right (always the commonest: {:.1f} %)",
            score.loss, 100 * score.accuracy, score.targets, 100 * score.most_frequent));
  }
  if (cut != nullptr) {
    print_line(fmt::format("without heads {}: loss {:.3f}, {:.1f} % right", names_of(cut->cut), cut->predicted->loss,
        100 * cut->predicted->accuracy));
  }
}

/// Of the heads of the first layer, the one that attends most to earlier keys.
void score_heads(const TrainRun& run, TrainReport& report, Context& context) {
  for (Index head = 0; head < run.model.config().num_heads; ++head) {
    lm::PreviousScore score =
        lm::score_previous(run.model, run.tokenizer.vocab_size(), kFreshWindows, 1, 0, head, context);
    if (report.previous && report.previous->mean >= score.mean) continue;
    report.previous = std::move(score);
    report.previous_head = head;
  }
}

}  // namespace

lm::HeadSet induction_heads(const TrainReport& report) {
  lm::HeadSet found;
  for (std::size_t at = 0; at < report.kinds.size(); ++at) {
    const lm::HeadReport& head = report.attention.heads[at];
    if (report.kinds[at].kind == "induction") found.push_back({head.layer, head.head});
  }
  return found;
}

TrainReport make_report(
    const TrainRun& run, const TrainCommandOptions& options, const lm::HeadSet& cut, Context& context) {
  TrainReport report;
  report.cut = cut;
  report.task = options.task;
  report.sample = run.sample;
  report.ids = run.tokenizer.encode(run.sample);
  report.labels = view::characters(run.sample);
  if (options.task == "masked") {
    report.ids[report.ids.size() / 2] = run.tokenizer.vocab_size();
    report.labels[report.ids.size() / 2] = kHidden;
  }
  report.attention = lm::attention_report(run.model, report.ids, context, cut);
  const Index symbols = run.model.config().vocab_size;
  const Tensor<float> logits = run.model.logits({report.ids.data(), {1, std::ssize(report.ids)}}, context, cut);
  report.next = lm::probabilities(logits.span().last(static_cast<std::size_t>(symbols)));
  if (options.task == "same" || options.task == "induction") report.kinds = kinds_of_model(run, cut, context);
  if (options.task == "previous" && cut.empty() && run.model.config().context >= 2) score_heads(run, report, context);
  if (options.task != "previous" || !run.cut.empty())
    report.predicted = lm::score_predictions(run.model, run.fresh, kFreshBatches, context, cut);
  const Index tokens = options.tokens.value_or(72);
  if (continues(options.task) && tokens > 0) {
    const std::vector<Index> prompt = run.tokenizer.encode(run.sample);
    const lm::GenerateOptions generate{.tokens = tokens, .seed = options.seed, .cut = cut};
    report.continuation = run.tokenizer.decode(lm::generate(run.model, prompt, generate, context));
  }
  return report;
}

view::AttentionMap report_map(const TrainReport& report) {
  return view::make_map(
      View<const float, 4>(report.attention.weights), report.labels, "attention of \"" + report.sample + "\"");
}

void print_report(const TrainReport& report, const TrainReport* cut) {
  const view::AttentionMap map = report_map(report);
  print_line();
  print_line(bold("attention weights, in percent") + faint("   row i: what character i attends to"));
  print_line();
  print_map(map);
  print_line();
  print_shares(report, cut);
  print_line();
  print_kinds(report);
  print_scores(report, cut);
  if (!report.continuation.empty()) {
    print_line();
    print_line(bold("it continues") + "  " + faint(one_line(report.sample)) + one_line(report.continuation));
    if (cut != nullptr)
      print_line(fmt::format("without heads {}  ", names_of(cut->cut)) + faint(one_line(cut->sample)) +
                 one_line(cut->continuation));
  }
}

void add_report(Json& document, const TrainReport& report) {
  if (!report.cut.empty()) document["without"] = names_of(report.cut);
  const auto head_json = [&](const lm::HeadReport& head) {
    Json share, above, rows = Json::array();
    for (const Kind& kind : kKinds) {
      share[kind.name] = (head.*kind.share).mean;
      above[kind.name] = (head.*kind.share).rows_above_half;
    }
    const View<const float, 2> weights = head_weights(report, head.layer, head.head);
    for (Index i = 0; i < weights.size(0); ++i) {
      Json row = Json::array();
      for (Index j = 0; j < weights.size(1); ++j) row.push_back(weights(i, j));
      rows.push_back(std::move(row));
    }
    return Json{{"weights", std::move(rows)}, {"share", std::move(share)}, {"rows_above_half", std::move(above)}};
  };
  Json sample{{"text", report.sample}, {"rows", report.attention.rows}};
  sample.update(head_json(report.attention.heads.front()));  // the first head; all of them follow
  document["sample"] = std::move(sample);
  Json heads = Json::array();
  for (const lm::HeadReport& head : report.attention.heads) {
    Json one{{"layer", head.layer}, {"head", head.head}};
    one.update(head_json(head));
    heads.push_back(std::move(one));
  }
  document["heads"] = std::move(heads);
  for (std::size_t at = 0; at < report.kinds.size(); ++at) {
    const view::HeadKind& kind = report.kinds[at];
    Json one{{"kind", kind.kind}, {"first", kind.first}};
    if (kind.share) one["share"] = *kind.share;
    for (const auto& [name, share] : kind.shares) one["shares"][std::string(name)] = share;
    document["heads"][at]["kind"] = std::move(one);
  }
  if (report.previous) {
    document["previous"] = {{"windows", kFreshWindows}, {"head", report.previous_head}, {"mean", report.previous->mean},
        {"lowest", report.previous->lowest}, {"rows", report.previous->rows}};
  }
  if (report.predicted) {
    document["fresh"] = {{"loss", report.predicted->loss}, {"accuracy", report.predicted->accuracy},
        {"most_frequent", report.predicted->most_frequent}, {"targets", report.predicted->targets}};
  }
  document["next"] = report.next;
  if (!report.continuation.empty()) document["continuation"] = report.continuation;
}

}  // namespace qkv::cli
