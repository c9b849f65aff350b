// `qkv lesson`: the twelve steps in the terminal, and the page that computes them.
#include <fmt/format.h>

#include <algorithm>

#include "core/escape.h"
#include "core/sentences.h"
#include "lesson/lesson.h"
#include "practice/exercises.h"
#include "support/claim.h"
#include "support/command.h"
#include "support/files.h"
#include "support/options.h"

namespace qkv::cli {
namespace {

struct LessonOptions {
  std::optional<Index> step;
  std::optional<std::string> answer;
  std::string out;
  bool draw = false, json = false;
  ComputeOptions compute;
};

std::string word(const char* key) { return lesson_text().at(key).get<std::string>(); }
std::string text_of(const Json& step, const char* key) { return step.at(key).get<std::string>(); }

/// A paragraph, its code without backticks; one that is code alone is a line of its own.
void print_paragraph(std::string text) {
  const bool code = text.front() == '`' && text.find('`', 1) == text.size() - 1;
  std::erase(text, '`');
  print_line(code ? "    " + bold(text) : wrapped(text));
}

/// The step's numbers: the answer is among them.
void print_drawing(const Json& step, const Example& example, Context& context) {
  const LessonDrawing drawing = lesson_drawing(text_of(step, "id"), example, context);
  if (drawing.shown.empty() && drawing.maps.empty()) return;
  print_line();
  print_arrays(example, drawing.shown);
  for (const view::AttentionMap& map : drawing.maps) print_map(map);
}

void print_step(Index number, const Json& step) {
  print_line(bold(fmt::format("{}  {}", number, text_of(step, "question"))));
  for (const Json& paragraph : step.at("text")) {
    print_line();
    print_paragraph(paragraph.get<std::string>());
  }
  const auto part = [](const char* key) { print_line("\n" + bold(word(key))); };
  part("step.pencil");
  print_paragraph(text_of(step.at("pencil"), "ask"));
  print_line(faint(fmt::format("  qkv lesson {} --answer ", number)) + faint(said("numbers, with commas between")));
  print_line(faint(fmt::format("  qkv lesson {} --draw   ", number)) +
             faint(said("the numbers of this step, the answer among them")));
  part("step.command");
  print_line("  " + text_of(step, "command"));
  if (!step.at("exercise").empty()) part("step.exercise");
  for (const Json& exercise : step.at("exercise")) {
    const std::string name = exercise.get<std::string>(), file = file_of(name) + ".py";
    print_line(fmt::format("  qkv practice {} > {}    qkv judge {}", name, file, file));
  }
  if (!step.at("articles").empty()) {
    part("step.articles");
    print_line(fmt::format("  {}  (docs/articles.md)", fmt::join(step.at("articles").get<Lines>(), ", ")));
  }
  print_line();
  print_paragraph(text_of(step, "broke"));
  const Json& steps = lesson_text().at("steps");
  if (number < std::ssize(steps))
    print_line(faint(
        fmt::format("  qkv lesson {}  ", number + 1) + text_of(steps[static_cast<std::size_t>(number)], "question")));
}

Json step_json(Index number, const Json& step, const NamedNumbers& numbers) {
  Json document{{"number", number}};
  for (const char* key : {"id", "question", "text", "command", "exercise", "articles", "broke"})
    document[key] = step.at(key);
  const Json& pencil = step.at("pencil");
  Json by_hand{
      {"ask", pencil.at("ask")}, {"digits", pencil.at("digits")}, {"answer", numbers.at(text_of(pencil, "answer"))}};
  by_hand["hints"] = Json::array();
  for (const Json& hint : pencil.at("hints"))
    by_hand["hints"].push_back({{"numbers", numbers.at(text_of(hint, "value"))}, {"say", hint.at("say")}});
  document["pencil"] = by_hand;
  return document;
}

int judge_answer(
    Index number, const Json& step, const LessonOptions& options, const LessonNumbers& numbers, Context& context) {
  const std::vector<double> typed = typed_numbers(*options.answer);
  const LessonVerdict verdict = judge_numbers(step.at("pencil"), typed, numbers.named);
  if (options.json) {
    print_json({{"number", number}, {"answer", typed}, {"right", verdict.right}, {"agreeing", verdict.agreeing},
        {"hint", verdict.hint.empty() ? Json() : Json(verdict.hint)}});
  } else if (verdict.right) {
    print_line(word("step.right"));
    print_drawing(step, numbers.example, context);
  } else if (!verdict.hint.empty()) {
    print_line(wrapped(verdict.hint));
  } else {
    print_line(fmt::format(
        fmt::runtime(word("step.some")), fmt::arg("right", verdict.agreeing), fmt::arg("all", typed.size())));
  }
  return verdict.right ? 0 : 1;
}

void print_list(const Json& steps) {
  for (std::size_t n = 0; n < steps.size(); ++n)
    print_line(fmt::format("{:>2}  {}", n + 1, text_of(steps[n], "question")));
  print_line();
  print_line("qkv lesson 4                            a step: its text, its numbers, what to compute by hand");
  print_line("qkv lesson 4 --answer .178,.088,.734    checks it");
  print_line("qkv lesson --out lesson.html            the lesson as a page that computes, for any browser");
}

int run_lesson(const LessonOptions& options) {
  Context context(options.compute.context());  // also where it is not used: a wrong --isa is refused
  if (!options.out.empty()) {
    Outputs outputs;
    outputs.expect("--out", options.out, {".html"});
    outputs.add(options.out, lesson_page());
    outputs.commit();
    if (options.json) print_json({{"out", options.out}});
    if (!options.json) print_line(fmt::format("wrote {}", one_line(options.out)));
    return 0;
  }
  const Json& steps = lesson_text().at("steps");
  if (!options.step) {
    if (options.answer) throw UsageError("--answer is about one step: qkv lesson 4 --answer .178,.088,.734");
    if (!options.json) {
      print_list(steps);
      return 0;
    }
  }
  const LessonNumbers numbers = lesson_numbers(context);
  if (!options.step) {
    Json document{{"steps", Json::array()}, {"numbers", numbers.named}};
    for (std::size_t n = 0; n < steps.size(); ++n)
      document["steps"].push_back(step_json(static_cast<Index>(n) + 1, steps[n], numbers.named));
    print_json(document);
    return 0;
  }
  const Json& step = steps[static_cast<std::size_t>(*options.step - 1)];
  if (options.answer) return judge_answer(*options.step, step, options, numbers, context);
  if (options.json) {
    print_json(step_json(*options.step, step, numbers.named));
  } else {
    if (options.draw) print_drawing(step, numbers.example, context);
    if (!options.draw) print_step(*options.step, step);
  }
  return 0;
}

void declare_lesson(Options& add, LessonOptions& options) {
  add("STEP", &options.step, "The step, 1 to 12; without it: their list", {.least = 1, .most = 12});
  add("--answer NUMBERS", &options.answer,
      "What you computed by hand, .178,.088,.734: right where each is less than 0.01 away; a known mistake gets a "
      "hint");
  add("--draw", &options.draw, "The step's numbers, drawn; a right answer draws them too",
      {.needs = "STEP", .excludes = {"--answer"}});
  add("--out FILE", &options.out, "The lesson as one page, .html, that computes in the browser; needs no network",
      {.excludes = {"STEP", "--answer"}});
  add.compute(options.compute, 1);
  add.json(options.json, {.excludes = {"--draw"}});
}

const bool lesson_added = add_command({"lesson", "Attention in twelve steps, computed by hand and by a page",
                                          "qkv lesson\n  qkv lesson 4\n  qkv lesson --out lesson.html"},
    declare_lesson, run_lesson);

}  // namespace
}  // namespace qkv::cli
