#include "judge/textbook.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>

#include "judge/text/language.h"
#include "qkv/error.h"

namespace qkv::judge {
namespace {

auto find_stage(auto& textbook, std::string_view name) { return std::ranges::find(textbook, name, &Stage::name); }

/// A stage as it is written, with `~` in it.
struct Written {
  std::string name;
  std::vector<std::string> steps;
  std::string only;
};
using Shelf = std::map<std::string, std::vector<Written>, std::less<>>;

/// "layer project split", "attention as layer.": stages of another textbook, all of them where none is named.
std::vector<Written> used(const Shelf& shelf, std::string_view text) {
  std::vector<std::string_view> words = words_of(text);
  std::string_view prefix;
  if (words.size() > 2 && words[words.size() - 2] == "as") {
    prefix = words.back();
    words.resize(words.size() - 2);
  }
  std::vector<Written> found;
  for (const Written& stage : shelf.at(std::string(words.front()))) {
    if (words.size() > 1 && std::ranges::find(words, stage.name) == words.end()) continue;
    Written own{replaced(stage.name, "~", prefix), {}, stage.only};
    for (const std::string& step : stage.steps) own.steps.push_back(replaced(step, "~", prefix));
    found.push_back(std::move(own));
  }
  return found;
}

Shelf read_textbooks() {
  Shelf shelf;
  std::vector<Written>* book = nullptr;
  std::string only;
  for (const std::string_view line : text_lines("textbooks.txt")) {
    const std::size_t bar = line.find('|');
    if (line.starts_with('[')) {
      book = &shelf[std::string(line.substr(1, line.size() - 2))];
      only.clear();
    } else if (definitions().define(line)) {
      continue;
    } else if (line.starts_with("only ")) {
      only = line.substr(5);
    } else if (line.starts_with("use ")) {
      for (Written& stage : used(shelf, line.substr(4))) {
        if (stage.only.empty()) stage.only = only;
        book->push_back(std::move(stage));
      }
    } else {
      if (!line.starts_with(' ')) book->push_back({std::string(trimmed(line.substr(0, bar))), {}, only});
      book->back().steps.emplace_back(line.substr(bar + 1));
    }
  }
  return shelf;
}

/// Stages are copied with every textbook that is edited: what they do lies here.
Stage stage_of(const Written& written) {
  static std::list<std::vector<Statements>> all;
  static std::list<Expression> conditions;
  std::vector<Statements>& steps = all.emplace_back();
  for (const std::string& step : written.steps) steps.push_back(parse_step(step));
  Stage stage{written.name, [&steps](Work& work) {
                for (const Statements& step : steps) step(work, 0);
              }};
  if (!written.only.empty()) {
    const Expression& condition = conditions.emplace_back(parse_expression(written.only));
    stage.only = [&condition](Work& work) { return (*condition({work}))[0].value != 0; };
  }
  return stage;
}

}  // namespace

const Array& Probe::at(std::string_view name) const {
  const auto found = inputs.find(name);
  if (found == inputs.end()) throw OptionError("the probe lacks the tensor '" + std::string(name) + "'");
  return found->second;
}

std::string value_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

Index Probe::count() const {
  Index numbers = 0;
  for (const auto& [name, array] : inputs) numbers += array.count();
  return numbers;
}

double Probe::number(const std::string& key, double otherwise) const {
  const std::string value = text(key);
  return value.empty() ? otherwise : std::strtod(value.c_str(), nullptr);
}

Array to_array(const AnyTensor& tensor) {
  const Tensor<double> values = to_f64(tensor);
  Array array(tensor.sizes);
  for (Index i = 0; i < array.count(); ++i) array[i] = values.data()[i];
  return array;
}

AnyTensor to_tensor(const Array& array) {
  Tensor<double> values(array.shape);
  for (Index i = 0; i < array.count(); ++i) values.data()[i] = array[i].value;
  return any_tensor(values);
}

Probe to_probe(const StateDict& state) {
  Probe probe;
  probe.metadata = state.metadata;
  for (const StateDict::Entry& entry : state.entries()) probe.inputs.emplace(entry.name, to_array(entry.tensor));
  return probe;
}

StateDict to_state(const Probe& probe) {
  StateDict state;
  state.metadata = probe.metadata;
  for (const auto& [name, array] : probe.inputs) {
    AnyTensor tensor = to_tensor(array);
    if (name == "mask") {
      Tensor<std::uint8_t> mask(array.shape);
      for (Index i = 0; i < array.count(); ++i) mask.data()[i] = array[i].value != 0;
      tensor = any_tensor(mask);
      tensor.dtype = DType::kBool;
    }
    state.add(name, std::move(tensor));
  }
  return state;
}

Work::Work(const Probe& p) : probe(p) {
  const double heads = p.number("heads", 1);
  arrays = {{"heads", constant(heads)}, {"kv_heads", constant(p.number("kv_heads", heads))},
      {"causal", constant(p.text("causal") == "1" ? 1 : 0)}};
}

Array& Work::operator[](std::string_view name) {
  const auto found = arrays.find(name);
  return found != arrays.end() ? found->second : arrays[std::string(name)];
}

const Array& Work::at(std::string_view name) const {
  const auto found = arrays.find(name);
  need(found != arrays.end());  // two edits together may leave out the step that makes it
  return found->second;
}

bool fits(const Textbook& textbook, const Edits& edits) {
  return std::ranges::all_of(
      edits, [&](const Edit& edit) { return find_stage(textbook, edit.stage) != textbook.end(); });
}

void apply(Stage& stage, const Edit& edit) {
  if (edit.where == Where::kInstead) stage.step = edit.step;
  if (edit.where == Where::kBefore) stage.before.insert(stage.before.begin(), edit.step);
  if (edit.where == Where::kAfter) stage.after.push_back(edit.step);
}

Textbook edited(Textbook textbook, const Edits& edits) {
  for (const Edit& edit : edits) apply(*find_stage(textbook, edit.stage), edit);
  return textbook;
}

void run(const Stage& stage, Work& work) {
  for (const Step& step : stage.before) step(work);
  stage.step(work);
  for (const Step& step : stage.after) step(work);
}

Work run(const Textbook& textbook, const Probe& probe, const Work* frozen) {
  Work work(probe);
  work.frozen = frozen;
  double round = 0, rounds = 1;
  do {
    work["round"] = constant(round);
    for (const Stage& stage : textbook) {
      if (!stage.only || stage.only(work)) run(stage, work);
    }
    if (work.has("rounds")) rounds = work.at("rounds")[0].value;
    need(rounds <= 1000);
  } while (++round < rounds);
  return work;
}

const Textbook& textbook_called(std::string_view name) {
  static const std::map<std::string, Textbook, std::less<>> all = [] {
    std::map<std::string, Textbook, std::less<>> books;
    for (const auto& [key, stages] : read_textbooks()) {
      for (const Written& stage : used({{key, stages}}, key)) books[key].push_back(stage_of(stage));
    }
    return books;
  }();
  return all.find(name)->second;
}

}  // namespace qkv::judge
