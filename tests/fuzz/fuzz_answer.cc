// libFuzzer: any safetensors file as the answer to one probe: the judge ends with one of its verdicts.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "judge/json.h"
#include "qkv/error.h"
#include "qkv/io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qkv;
  static const std::vector<StateDict> probes = [] {
    std::vector<StateDict> all = judge::make_probes("sdpa", judge::default_sizes("sdpa"));
    all.resize(1);
    return all;
  }();
  std::vector<judge::Answer> answers(1);
  try {
    answers.front().tensors = io::parse_safetensors(std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
    return 0;
  }
  const judge::Finding finding = judge::judge("sdpa", probes, answers, false);  // pairs of mistakes take seconds
  constexpr std::array<std::string_view, 5> kVerdicts = {"right", "convention", "wrong", "unknown", "failed"};
  if (std::ranges::find(kVerdicts, finding.verdict) == kVerdicts.end()) std::abort();
  if (judge::to_json(finding).empty()) std::abort();
  return 0;
}
