#include "judge/textbook.h"

#include <algorithm>
#include <cstdlib>

#include "qkv/error.h"

namespace qkv::judge {

const Array& Probe::at(std::string_view name) const {
  const auto found = inputs.find(name);
  if (found == inputs.end()) throw OptionError("the probe lacks the tensor '" + std::string(name) + "'");
  return found->second;
}

std::string Probe::text(const std::string& key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

double Probe::number(const std::string& key, double otherwise) const {
  const std::string value = text(key);
  return value.empty() ? otherwise : std::strtod(value.c_str(), nullptr);
}

bool Probe::says(const std::string& key, std::string_view word) const {
  const std::string list = "," + text(key) + ",";
  return list.find("," + std::string(word) + ",") != std::string::npos;
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

Work::Work(const Probe& p)
    : probe(p), heads(p.integer("heads", 1)), kv_heads(p.integer("kv_heads", heads)), causal(p.text("causal") == "1") {}

Array& Work::operator[](std::string_view name) {
  const auto found = arrays.find(name);
  return found != arrays.end() ? found->second : arrays[std::string(name)];
}

const Array& Work::at(std::string_view name) const {
  const auto found = arrays.find(name);
  need(found != arrays.end());  // two edits together may leave out the step that makes it
  return found->second;
}

namespace {
auto find_stage(auto& textbook, std::string_view name) {
  return std::ranges::find_if(textbook, [name](const Stage& stage) { return stage.name == name; });
}
}  // namespace

bool fits(const Textbook& textbook, const Edits& edits) {
  return std::ranges::all_of(edits, [&](const Edit& edit) { return find_stage(textbook, edit.stage) != textbook.end(); });
}

Textbook edited(Textbook textbook, const Edits& edits) {
  for (const Edit& edit : edits) {
    Stage& stage = *find_stage(textbook, edit.stage);
    if (edit.where == Where::kInstead) {
      stage.step = edit.step;
    } else {
      const bool before = edit.where == Where::kBefore;
      stage.step = [first = before ? edit.step : stage.step, second = before ? stage.step : edit.step](Work& work) {
        first(work);
        second(work);
      };
    }
  }
  return textbook;
}

Work run(const Textbook& textbook, const Probe& probe, const Work* frozen) {
  Work work(probe);
  work.frozen = frozen;
  do {
    for (const Stage& stage : textbook) stage.step(work);
  } while (++work.round < work.rounds);
  return work;
}

}  // namespace qkv::judge
