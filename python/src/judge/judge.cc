// The judge's probes and verdicts. A tensor is (NumPy's name of its type, sizes, bytes); a file (tensors by name,
// metadata). Not: running a person's code (qkv/_judge/runner).
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "judge/report.h"
#include "qkv/error.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using Words = std::map<std::string, std::string>;
using Tensors = std::map<std::string, std::tuple<std::string, std::vector<Index>, nb::bytes>>;
using File = std::pair<Tensors, Words>;

constexpr std::pair<const char*, DType> kTypes[] = {{"float64", DType::kF64}, {"float32", DType::kF32},
    {"int64", DType::kI64}, {"int32", DType::kI32}, {"bool", DType::kBool}};

StateDict state_of(const File& file) {
  StateDict state;
  state.metadata = file.second;
  for (const auto& [name, parts] : file.first) {
    const auto& [type, sizes, bytes] = parts;
    AnyTensor tensor;
    tensor.dtype = std::ranges::find_if(kTypes, [&](const auto& one) { return type == one.first; })->second;
    tensor.sizes = sizes;
    tensor.bytes.resize(bytes.size());
    if (!tensor.bytes.empty()) std::memcpy(tensor.bytes.data(), bytes.c_str(), bytes.size());
    state.add(name, std::move(tensor));
  }
  return state;
}

File file_of(const StateDict& state) {
  File file{{}, state.metadata};
  for (const StateDict::Entry& entry : state.entries()) {
    const AnyTensor& tensor = entry.tensor;
    const auto* type = std::ranges::find(kTypes, tensor.dtype, &std::pair<const char*, DType>::second);
    file.first.emplace(
        entry.name, std::tuple(type->first, tensor.sizes, nb::bytes(tensor.bytes.data(), tensor.bytes.size())));
  }
  return file;
}

judge::Subject look_of(const std::string& task, const std::map<std::string, Index>& sizes, bool output,
    std::vector<std::string> absent, bool causal, std::optional<double> dropout) {
  judge::Subject subject{.task = task, .sizes = judge::default_sizes(task)};
  for (const auto& [name, size] : sizes) judge::set_size(subject.sizes, name, static_cast<double>(size));
  subject.owner = {.output = output, .absent = std::move(absent), .causal = causal, .dropout = dropout};
  return subject;
}

template <class T, class... Fields>
nb::list dicts(const std::vector<T>& all, const std::pair<const char*, Fields T::*>&... fields) {
  nb::list list;
  for (const T& one : all) {
    nb::dict dict;
    ((dict[fields.first] = nb::cast(one.*fields.second)), ...);
    list.append(dict);
  }
  return list;
}
template <class T, class F> std::pair<const char*, F T::*> field(const char* name, F T::*member) {
  return {name, member};
}

nb::dict dict_of(const judge::Finding& finding) {
  using judge::Check, judge::Convention, judge::Mistake;
  nb::dict found;
  found["file"] = finding.file, found["name"] = finding.name, found["task"] = finding.task;
  found["verdict"] = finding.verdict, found["notes"] = finding.notes, found["traceback"] = finding.traceback;
  found["mistakes"] = dicts(finding.mistakes, field("id", &Mistake::id), field("same_as", &Mistake::same_as),
      field("says", &Mistake::says), field("hint", &Mistake::hint), field("evidence", &Mistake::evidence),
      field("term", &Mistake::term), field("read", &Mistake::read));
  found["conventions"] = dicts(finding.conventions, field("id", &Convention::id), field("says", &Convention::says));
  found["checks"] =
      dicts(finding.checks, field("name", &Check::name), field("ok", &Check::ok), field("detail", &Check::detail));
  return found;
}

}  // namespace

NB_MODULE(_engine, m) {
  m.def(
      "probes",
      [](const std::string& task, const std::map<std::string, Index>& sizes, bool output,
          std::vector<std::string> absent, bool causal, std::optional<double> dropout) {
        const judge::Subject subject = look_of(task, sizes, output, std::move(absent), causal, dropout);
        std::vector<File> files;
        for (const StateDict& probe : judge::make_probes(task, subject.sizes, 0, subject.owner))
          files.push_back(file_of(probe));
        return files;
      },
      nb::arg("task"), nb::arg("sizes"), nb::arg("output"), nb::arg("absent"), nb::arg("causal"),
      nb::arg("dropout").none(), "The inputs of a task for code of these sizes.");
  m.def(
      "verdict",
      [](const Words& names, const std::vector<std::pair<std::string, std::string>>& readings,
          const std::vector<std::string>& conventions, const std::vector<std::string>& untried,
          const std::vector<std::string>& notes, const std::vector<File>& probes,
          const std::vector<std::vector<File>>& answers, bool hint) {
        judge::Subject subject{.file = names.at("file"), .name = names.at("name"), .task = names.at("task")};
        for (const auto& [label, convention] : readings) subject.assignments.push_back({label, convention});
        subject.conventions = conventions, subject.untried = untried, subject.notes = notes;
        std::vector<StateDict> states;
        for (const File& probe : probes) states.push_back(state_of(probe));
        const judge::Finding finding = judge::judge_readings(subject, states, [&](std::size_t n) {
          std::vector<judge::Answer> given;
          for (const File& answer : answers.at(n)) given.push_back({state_of(answer)});
          return given;
        });
        const auto plain = [](std::string_view text) { return std::string(text); };
        return std::pair(dict_of(finding), judge::report(finding, hint, {plain, plain}));
      },
      nb::arg("names"), nb::arg("readings"), nb::arg("conventions"), nb::arg("untried"), nb::arg("notes"),
      nb::arg("probes"), nb::arg("answers"), nb::arg("hint"),
      "What the answers of each reading of the parameters show, and its text.");
}

}  // namespace qkv::python
