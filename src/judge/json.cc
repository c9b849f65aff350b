#include "judge/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "core/escape.h"
#include "core/sentences.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

using Json = nlohmann::ordered_json;

/// Discarded where it is no JSON. What nests deeper than anything that is asked for is left out: copies and texts of it
/// would run out of stack.
Json parsed(const std::string& text) {
  constexpr int kDeepest = 8;
  return Json::parse(
      text, [](int depth, Json::parse_event_t, const Json&) { return depth < kDeepest; }, false);
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int number_of(const Json& object, const char* key) {
  const Json found = object.value(key, Json());
  return found.is_number_integer() ? found.get<int>() : 0;
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> found;
  const auto list = object.find(key);
  for (const Json& one : list != object.end() && list->is_array() ? *list : Json::array()) {
    if (one.is_string()) found.push_back(one);
  }
  return found;
}

void set_from(Sizes& sizes, const Json& given) {
  if (!given.is_object())
    throw OptionError("sizes must be an object like {\"embed\": 48, \"heads\": 4}: got " + given.dump());
  for (const auto& [name, size] : given.items()) {
    try {
      if (!size.is_null() && !set_size(sizes, name, size.is_number_integer() ? size.get<double>() : 0))
        throw OptionError("no size is called " + escaped(name));
    } catch (const OptionError& error) {
      throw OptionError(std::string(error.what()) + ": got " + size.dump());
    }
  }
  const auto says = [&](const char* key) { return given.contains(key) && !given[key].is_null(); };
  if (says("heads") && !says("kv_heads")) sizes.kv_heads = sizes.heads;
  if ((says("embed") || says("heads")) && !says("head_dim") && sizes.embed % sizes.heads == 0)
    sizes.head_dim = sizes.embed / sizes.heads;
}

}  // namespace

Sizes sizes_of(std::string_view task, const std::string& json) {
  Sizes sizes = default_sizes(task);
  const Task& own = *find_task(task);
  const Json given = parsed(json);
  if (given.is_discarded()) throw OptionError("must be JSON like {\"embed\": 48, \"heads\": 4}: got " + escaped(json));
  const std::string names = own.size_names();
  for (const auto& item : given.items()) {
    if (given.is_object() && (" " + names + ",").find(" " + item.key() + ",") == std::string::npos)
      throw OptionError("the task " + std::string(task) + " has no " + escaped(item.key()) +
                        (names.empty() ? ": its sizes are fixed" : ": it has " + names));
  }
  set_from(sizes, given);
  if (!own.has("heads")) return sizes;
  const auto must = [](bool holds, const char* rule, const char* a, Index got_a, const char* b, Index got_b) {
    if (!holds)
      throw OptionError(
          std::string(rule) + ": got " + a + " " + std::to_string(got_a) + ", " + b + " " + std::to_string(got_b));
  };
  must(sizes.embed % sizes.heads == 0, "heads must divide embed", "heads", sizes.heads, "embed", sizes.embed);
  must(sizes.heads % sizes.kv_heads == 0, "kv_heads must divide heads", "kv_heads", sizes.kv_heads, "heads",
      sizes.heads);
  const Index width = sizes.embed / sizes.heads;
  must(sizes.head_dim == width, "head_dim must be embed / heads", "head_dim", sizes.head_dim, "embed / heads", width);
  return sizes;
}

Subject subject_of(const std::string& text) {
  Subject subject;
  const auto failed = [&](const std::string& says) {
    subject.verdict = "failed", subject.says = says;
    return subject;
  };
  const Json document = parsed(text);
  if (!document.is_object()) return failed("what was found of the code (subject.json) is not JSON");
  subject.file = text_of(document, "file"), subject.name = text_of(document, "name");
  subject.task = text_of(document, "task");
  subject.verdict = text_of(document, "verdict"), subject.says = text_of(document, "says");
  subject.traceback = text_of(document, "traceback"), subject.check = text_of(document, "check");
  subject.line = number_of(document, "line");
  subject.notes = texts_of(document, "notes"), subject.untried = texts_of(document, "untried");
  subject.conventions = texts_of(document, "conventions"), subject.promised = texts_of(document, "promised");
  if (!subject.verdict.empty()) {
    if (subject.verdict != "unfilled") subject.verdict = "failed";
    return subject;
  }
  if (find_task(subject.task) == nullptr) return failed("no task is called " + escaped(subject.task));
  subject.sizes = default_sizes(subject.task);
  std::vector<Sizes> small;
  try {
    set_from(subject.sizes, document.value("sizes", Json::object()));
    const Json others = document.value("small", Json::array());
    for (std::size_t n = 0; others.is_array() && n < std::min<std::size_t>(others.size(), 3); ++n)
      set_from(small.emplace_back(subject.sizes), others[n]);
  } catch (const OptionError& error) {
    return failed(std::string(error.what()) + " (build it smaller: --init dim=48,heads=4)");
  }
  if (const Json has = document.value("has", Json::object()); has.is_object()) {
    const Json rate = has.value("dropout", Json());
    subject.owner = {.absent = texts_of(has, "absent"),
        .causal = has.value("causal", Json()) == true,
        .dropout = rate.is_number() ? std::optional(rate.get<double>()) : std::nullopt};
    const Json metadata = has.value("metadata", Json::object());
    for (const auto& [key, value] : metadata.items())
      if (value.is_string()) subject.owner.metadata[key] = value;
    subject.owner.small = std::move(small);
  }
  if (const Json assignments = document.value("assignments", Json::array()); assignments.is_array()) {
    for (const Json& one : assignments) {
      if (one.is_object()) subject.assignments.push_back({text_of(one, "label"), text_of(one, "convention")});
    }
  }
  if (subject.assignments.empty()) subject.assignments.push_back({});
  return subject;
}

void set_line(Finding& finding, const std::string& text) {
  const Json found = parsed(text);
  if (!found.is_object()) return;
  const int line = number_of(found, "line"), right = number_of(found, "right"), called = number_of(found, "called");
  // Of code that is explained the task is known; of other code, other arrays must show that the textbook fits.
  if (line <= 0 || (finding.verdict == "unknown" && found.value("sure", Json()) != true)) return;
  const std::string own = std::to_string(line);
  std::string says = "line " + own + " is the first that differs from the textbook";
  if (found.value("near", Json()) == true) says = "look at line " + own;
  if (right > 0)
    says = "right up to line " + std::to_string(right) + " (" + text_of(found, "stage") + "); line " + own +
           " is the first that is not";
  if (called > 0) says += "\ncalled from line " + std::to_string(called);
  if (const std::string probe = text_of(found, "probe"); probe != "plain")
    says += "\nshown by the probe \"" + probe + "\"";
  Index at = number_of(found, "first");
  for (const std::string& source : texts_of(found, "source")) {
    const std::string count = std::to_string(at);
    says += "\n" + std::string(at == line ? ">" : " ") + std::string(5 - std::min<std::size_t>(count.size(), 5), ' ') +
            count + " | " + source;
    ++at;
  }
  if (const std::string label = text_of(found, "label"); !label.empty())
    says += "\n" + label + "\n  expected" + text_of(found, "expected") + "\n  got     " + text_of(found, "got");
  finding.line = line, finding.where = says + "\n";
}

std::string to_json(const Finding& finding) {
  Json mistakes = Json::array(), conventions = Json::array(), checks = Json::array(), notes = Json::array();
  const Task* task = find_task(finding.task);
  for (const Mistake& one : finding.mistakes) {
    const Formula formula = task == nullptr ? Formula{} : task->formula(one.term);
    mistakes.push_back({{"id", one.id}, {"same_as", one.same_as}, {"says", said(one.says)}, {"hint", said(one.hint)},
        {"evidence", one.evidence}, {"term", one.term}, {"formula", formula.whole}, {"part", formula.part},
        {"read", one.read}});
  }
  for (const Convention& one : finding.conventions) conventions.push_back({{"id", one.id}, {"says", said(one.says)}});
  for (const Check& one : finding.checks)
    checks.push_back({{"name", one.name}, {"ok", one.ok}, {"asked", one.asked}, {"detail", said(one.detail)}});
  for (const std::string& note : finding.notes) notes.push_back(said(note));
  const Json document = {{"file", finding.file}, {"name", finding.name}, {"task", finding.task},
      {"verdict", finding.verdict}, {"mistakes", mistakes}, {"conventions", conventions}, {"checks", checks},
      {"untried", finding.untried}, {"notes", notes}, {"evidence", finding.evidence},
      {"line", finding.line > 0 ? Json(finding.line) : Json()}, {"where", finding.where},
      {"traceback", finding.traceback}, {"seconds", finding.seconds}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace qkv::judge
