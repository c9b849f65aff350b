// dropout: sdpa that drops weights in training. What a call in evaluation gives is sdpa's textbook; training is judged by statistics
// (judge/dropout.h).
#include "judge/dropout.h"

#include <algorithm>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {
namespace {

std::vector<Probe> dropout_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const Index keys = std::max(s.memory, s.length + 2);
  const auto make = [&](std::string_view name, std::string_view call, Index batch, Index queries, Index keys_here,
                        Index width) {
    Probe probe = start_probe("dropout", name, call, s);
    probe.metadata["dropout"] = "0.25";  // not 0.5: what is kept and what is dropped differ
    probe.inputs["q"] = draw.array({batch, s.heads, queries, width});
    probe.inputs["k"] = draw.array({batch, s.heads, keys_here, width});
    probe.inputs["v"] = draw.array({batch, s.heads, keys_here, width});
    return probe;
  };
  std::vector<Probe> probes;
  probes.push_back(make("plain", "forward", s.batch, s.length, keys, s.head_dim));
  probes.push_back(make("as many queries as keys", "forward", s.batch, s.length, s.length, s.head_dim));
  probes.push_back(make("one token", "forward", s.batch, 1, 1, s.head_dim));
  probes.push_back(make("another batch", "forward", s.batch + 2, s.length + 1, keys + 4, s.head_dim));
  Probe large = make("large scores", "forward", s.batch, s.length, keys, s.head_dim);
  large.inputs["q"] = large.at("q") * Number(1000);
  probes.push_back(std::move(large));
  for (const char* call : {"training", "evaluation"}) {
    Probe probe = make(call, call, s.batch, s.length, keys, 2 * keys);
    probe.inputs["v"] = weights_shown_twice(s.batch, s.heads, keys);
    probe.metadata["repeat"] = "40";
    probes.push_back(std::move(probe));
  }
  return probes;
}

}  // namespace

Task dropout_task() {
  return {.name = "dropout",
          .title = "weights that are dropped",
          .teaches = "Dropout acts on the weights, in training only, and what is kept grows so that the mean stays.",
          .article = "000, 002, 003, 004",
          .functions = {"dropout_attention"},
          .classes = {"DropoutAttention"},
          .arguments = {{"q", "B H T d"}, {"k", "B H S d"}, {"v", "B H S d"}},
          .parts = {"dropout", "function", "scores", "softmax", "values"},
          .sizes = {},
          .textbook = function_textbook(),
          .answers = {"out"},
          .probes = dropout_probes};
}

}  // namespace qkv::judge
