// The judge's probes and verdicts: what was found of the code as JSON, tensors as safetensors files in bytes. Not:
// running a person's code (qkv/_judge/runner).
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>

#include "judge/json.h"
#include "judge/text/chinese.h"
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

std::vector<nb::bytes> probes(const std::string& code, std::uint64_t seed) {
  const judge::Subject subject = judge::subject_of(code);
  std::vector<nb::bytes> files;
  for (const StateDict& probe : judge::make_probes(subject.task, subject.sizes, seed, subject.owner)) {
    const std::vector<std::byte> file = io::write_safetensors(probe);
    files.emplace_back(file.data(), file.size());
  }
  return files;
}

std::pair<std::string, std::string> verdict(const std::string& code, const std::vector<nb::bytes>& probes,
    const std::vector<std::vector<nb::bytes>>& answers, bool hint, bool chinese) {
  const Speaking speaking(chinese ? &judge::chinese() : nullptr);
  const judge::Finding finding = judge::judge_readings(judge::subject_of(code), states_of(probes), [&](std::size_t n) {
    std::vector<judge::Answer> given;
    for (StateDict& answer : states_of(answers.at(n))) given.push_back({std::move(answer)});
    return given;
  });
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
      "What the answers of each reading of the parameters show, as JSON and as text.");
}

}  // namespace qkv::python
