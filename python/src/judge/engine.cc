// The judge's probes and verdicts: what was found of the code as JSON, tensors as safetensors files in bytes. Not:
// running a person's code (qkv/_judge/runner).
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>

#include "judge/json.h"
#include "qkv/error.h"
#include "qkv/io/safetensors.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

std::vector<StateDict> states_of(const std::vector<nb::bytes>& files) {
  std::vector<StateDict> states;
  for (const nb::bytes& file : files)
    states.push_back(io::parse_safetensors({static_cast<const std::byte*>(file.data()), file.size()}));
  return states;
}

nb::bytes file_of(const StateDict& state) {
  const std::vector<std::byte> file = io::write_safetensors(state);
  return nb::bytes(file.data(), file.size());
}

std::vector<nb::bytes> probes(const std::string& code, std::uint64_t seed) {
  const judge::Subject subject = judge::subject_of(code);
  std::vector<nb::bytes> files;
  for (const StateDict& probe : judge::make_probes(subject.task, subject.sizes, seed, subject.owner))
    files.push_back(file_of(probe));
  return files;
}

/// watch(reading, probes, their stages): the line as JSON.
using Watch = std::function<std::string(std::size_t, const std::vector<std::size_t>&, const std::vector<nb::bytes>&)>;

std::pair<std::string, std::string> verdict(const std::string& code, const std::vector<nb::bytes>& probes,
    const std::vector<std::vector<nb::bytes>>& answers, bool hint, bool chinese, const Watch& watch) {
  const Speaking speaking(chinese ? &judge::chinese() : nullptr);
  const judge::Subject subject = judge::subject_of(code);
  const std::vector<StateDict> given = states_of(probes);
  judge::Finding finding = judge::judge_readings(subject, given, [&](std::size_t n) {
    std::vector<judge::Answer> read;
    for (StateDict& answer : states_of(answers.at(n))) read.push_back({std::move(answer)});
    return read;
  });
  if (const std::vector<std::size_t> wrong = judge::watched_probes(finding, given); !wrong.empty()) {
    std::vector<nb::bytes> stages;
    for (const std::size_t n : wrong) stages.push_back(file_of(judge::stages(finding, given[n])));
    set_line(finding, watch(finding.reading, wrong, stages));
  }
  const auto plain = [](std::string_view text) { return std::string(text); };
  return {judge::to_json(finding), judge::report(finding, hint, {plain, plain})};
}

std::string in_chinese(const std::string& sentence) { return judge::chinese().said(sentence); }

}  // namespace

NB_MODULE(_engine, m) {
  m.def("probes", probes, nb::arg("code"), nb::arg("seed") = 0,
      "The inputs of a task for the code that subject.json describes.");
  m.def("in_chinese", in_chinese, nb::arg("sentence"), "A sentence of the judge in Chinese.");
  m.def("verdict", verdict, nb::arg("code"), nb::arg("probes"), nb::arg("answers"), nb::arg("hint"), nb::arg("chinese"),
      nb::arg("watch"),
      "What the answers of each reading of the parameters show, as JSON and as text; watch(reading, probes, stages) is "
      "called where the verdict is not right, and gives the line as JSON.");
}

}  // namespace qkv::python
