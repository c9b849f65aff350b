// linear: attention without softmax, whose weights are products of feature maps. Katharopoulos 2020 (arXiv:2006.16236), eq. 4, 7.
// The textbook multiplies pairs; a state of sums over keys is the same numbers in another order.
#include <algorithm>
#include <cmath>
#include <string>

#include "judge/probes.h"
#include "judge/tasks/steps.h"

namespace qkv::judge {
namespace {

void given_step(Work& work) {
  for (const char* name : {"q", "k", "v"}) work[name] = work.probe.at(name);
}

/// features_q [B, H, Tq, d], features_k [B, H, Tk, d] = elu(x) + 1.
void features_step(Work& work) {
  for (const std::string name : {"q", "k"}) {
    work["features_" + name] = map(work.at(name), [](Number x) { return x.value > 0 ? x + Number(1) : exp(x); });
  }
}

/// products [B, H, Tq, Tk] = features_q features_k^T.
void products_step(Work& work) { work["products"] = matmul(work.at("features_q"), transpose(work.at("features_k"))); }

void hide_step(Work& work) {
  work["products"] =
      zip(work.at("products"), work.at("visible"), [](Number p, Number seen) { return seen.value != 0 ? p : Number(0); });
}

/// weights [B, H, Tq, Tk]: products divided by the sum of their row.
void normalise_step(Work& work) {
  work["weights"] = zip(work.at("products"), sum(work.at("products"), -1), [](Number p, Number total) { return p / total; });
}

Textbook linear_textbook() {
  return {{"given", given_step}, {"features", features_step},   {"products", products_step}, {"see", see_step},
          {"hide", hide_step},   {"normalise", normalise_step}, {"mix", mix_step},           {"output", take_values_step}};
}

std::vector<Probe> linear_probes(const Sizes& s, std::uint64_t seed) {
  Draw draw(seed);
  const auto make = [&](std::string_view name, Index batch, Index queries, Index keys, bool causal, double spread = 1) {
    Probe probe = start_probe("linear", name, "forward", s);
    probe.metadata["causal"] = causal ? "1" : "0";
    probe.inputs["q"] = draw.array({batch, s.heads, queries, s.head_dim}, spread);
    probe.inputs["k"] = draw.array({batch, s.heads, keys, s.head_dim}, spread);
    probe.inputs["v"] = draw.array({batch, s.heads, keys, s.head_dim});
    return probe;
  };
  const Index queries = s.length, keys = std::max(s.memory, s.length + 2);
  std::vector<Probe> probes;
  probes.push_back(make("plain", s.batch, queries, keys, false));
  probes.push_back(make("causal", s.batch, queries, queries, true));
  probes.push_back(make("as many queries as keys", s.batch, queries, queries, false));
  probes.push_back(make("large inputs", s.batch, queries, keys, false, 8));
  probes.push_back(make("causal, large inputs", s.batch, keys, keys, true, 8));
  probes.push_back(make("one token", s.batch, 1, 1, false));
  probes.push_back(make("another batch", s.batch + 2, queries + 1, keys + 4, false));
  probes.push_back(called_twice(probes.front()));
  return probes;
}

}  // namespace

Task linear_task() {
  return {
      .name = "linear",
      .title = "without softmax",
      .teaches =
          "A feature map instead of exp, so that sums over keys can be kept: cost grows with the length, not with its square.",
      .article = "002 (a table row)",
      .functions = {"linear_attention"},
      .classes = {},
      .arguments = {{"q", "B H T d"}, {"k", "B H S d"}, {"v", "B H S d"}},
      .parts = {"linear", "causal"},
      .sizes = {},
      .textbook = linear_textbook(),
      .answers = {"out"},
      .probes = linear_probes};
}

}  // namespace qkv::judge
